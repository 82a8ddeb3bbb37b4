//go:build e2e

package admission

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpuslice/gpuslice/scheduler/webhook"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/loopback"
	"github.com/gpuslice/gpuslice/test/testcases"
)

// TestAPIServer: the tables, on a real API server (and etcd) that has the manifests: only the policy, only
// the webhooks, and both.
func TestAPIServer(t *testing.T) {
	admin := startAPIServer(t)
	api, err := kubernetes.NewForConfig(admin)
	require.NoError(t, err)
	ctx := context.Background()
	_, err = api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a", Labels: map[string]string{"hami.io/webhook": "ignore"}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, namespace := range []string{"team-a", "kube-system"} {
		_, err = api.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	_, err = api.NodeV1().RuntimeClasses().Create(ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: testcases.RuntimeClass}, Handler: "nvidia"}, metav1.CreateOptions{})
	require.NoError(t, err)
	annotations := func(name string) {
		for _, namespace := range []string{"team-a", "kube-system"} {
			for _, tc := range testcases.AllAnnotations() {
				t.Run(name+"/"+namespace+"/"+tc.Name, func(t *testing.T) {
					require.NoError(t, tc.Try(ctx, admin, namespace))
				})
			}
		}
	}
	forged := testcases.Annotations{As: testcases.Admin, Resource: "pods", Operation: "CREATE", After: map[string]string{"gpuslice.io/grant": "x"}, Denied: true}

	for _, object := range append(load(t, "policy.yaml"), load(t, "agents.yaml")...) {
		switch o := object.(type) {
		case *admissionregistrationv1.ValidatingAdmissionPolicy:
			_, err = api.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx, o, metav1.CreateOptions{})
		case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
			_, err = api.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(ctx, o, metav1.CreateOptions{})
		}
		require.NoError(t, err)
	}
	eventually(t, "the policy is in force", func() error { return forged.Try(ctx, admin, "team-a") })
	annotations("policy")
	noWarnings(t, api, "gpuslice-annotations")
	t.Run("agents", func(t *testing.T) { agentsNodes(t, admin, api) })
	noWarnings(t, api, "gpuslice-agents")

	listener := listen(t)
	for _, object := range load(t, "configurations.yaml") {
		switch o := object.(type) {
		case *admissionregistrationv1.MutatingWebhookConfiguration:
			for i := range o.Webhooks {
				byURL(&o.Webhooks[i].ClientConfig, listener.Addr())
			}
			_, err = api.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, o, metav1.CreateOptions{})
		case *admissionregistrationv1.ValidatingWebhookConfiguration:
			for i := range o.Webhooks {
				byURL(&o.Webhooks[i].ClientConfig, listener.Addr())
			}
			_, err = api.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, o, metav1.CreateOptions{})
		}
		require.NoError(t, err)
	}
	objects := load(t, "webhook.yaml")
	i := slices.IndexFunc(objects, func(o runtime.Object) bool { _, is := o.(*corev1.Secret); return is })
	secret, err := json.Marshal(objects[i])
	require.NoError(t, err)
	var empty corev1.Secret
	require.NoError(t, json.Unmarshal(secret, &empty))
	empty.ResourceVersion = ""
	_, err = api.CoreV1().Secrets("kube-system").Create(ctx, &empty, metav1.CreateOptions{})
	require.NoError(t, err)
	// Two replicas, one of which is called.
	one, other := webhookOptions(api, listener), webhookOptions(api, listen(t))
	running(t, one)
	running(t, other)
	pod := testcases.AllPods()[2]
	eventually(t, "the webhook is called", func() error { return pod.Try(ctx, admin, "team-a") })
	for _, tc := range testcases.AllPods() {
		t.Run("pods/"+tc.Name, func(t *testing.T) {
			require.NoError(t, tc.Try(ctx, admin, "team-a"))
		})
	}
	annotations("both")
	require.NoError(t, api.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(ctx, "gpuslice-annotations", metav1.DeleteOptions{}))
	eventually(t, "only the webhook answers", func() error {
		_, err := api.CoreV1().Pods("team-a").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Annotations: forged.After},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "x"}}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "admission webhook") {
			return fmt.Errorf("the answer is %v", err)
		}
		return nil
	})
	annotations("webhooks")
}

// agentsNodes: the policy uses the node name in a pod's token. TestAgentsWriteOfTheirGPUsAlone tests the
// rest.
func agentsNodes(t *testing.T, admin *rest.Config, api kubernetes.Interface) {
	ctx := context.Background()
	for _, name := range []string{"node-1", "node-2"} {
		_, err := api.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	config := rest.CopyConfig(admin)
	config.Impersonate = rest.ImpersonationConfig{UserName: agent, Groups: []string{"system:masters"}, // every right, but for the policy
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"node-1"}}}
	as, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	patch := func(node, body string) error {
		_, err := as.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(body), metav1.PatchOptions{})
		return err
	}
	const gpus = `{"metadata":{"annotations":{"gpuslice.io/node-gpus":"x"}}}`
	eventually(t, "the agents' policy is in force", func() error {
		if patch("node-1", `{"spec":{"unschedulable":true}}`) == nil {
			return errors.New("an agent may cordon a node")
		}
		return nil
	})
	require.NoError(t, patch("node-1", gpus))
	require.ErrorContains(t, patch("node-2", gpus), "writes only to that Node")
}

// noWarnings: the API server has no warnings about the policy's types.
func noWarnings(t *testing.T, api kubernetes.Interface, name string) {
	t.Helper()
	policy, err := api.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(context.Background(), name, metav1.GetOptions{})
	require.NoError(t, err)
	if policy.Status.TypeChecking != nil {
		require.Empty(t, policy.Status.TypeChecking.ExpressionWarnings)
	}
}

// byURL names the webhook by an address: here is no network of services.
func byURL(c *admissionregistrationv1.WebhookClientConfig, at net.Addr) {
	url := "https://" + at.String() + *c.Service.Path
	c.URL, c.Service = &url, nil
}

func webhookOptions(api kubernetes.Interface, listener net.Listener) webhook.Options {
	o := webhook.DefaultOptions()
	o.Client, o.Listener, o.Linger, o.Log = api, listener, 0, slog.New(slog.DiscardHandler)
	o.Certificate.Names = []string{"127.0.0.1"}
	return o
}

func running(t *testing.T, o webhook.Options) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- webhook.Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}

// startAPIServer starts etcd and kube-apiserver, and is how an administrator reaches it.
func startAPIServer(t *testing.T) *rest.Config {
	t.Helper()
	dir := t.TempDir()
	tools, err := exec.Command("../setup.sh", "--where-kubernetes").Output()
	require.NoError(t, err)
	start := func(name string, args ...string) *harness.Process {
		path := filepath.Join(strings.TrimSpace(string(tools)), name)
		_, err := os.Stat(path)
		require.NoError(t, err, "run test/setup.sh --kubernetes first")
		p, err := harness.StartProcess(dir, name, nil, path, args...)
		require.NoError(t, err)
		t.Cleanup(func() {
			if err := p.Stop(20 * time.Second); t.Failed() {
				t.Logf("%s: %v\n%s", name, err, p.LogTail(20))
			}
		})
		return p
	}
	client, peer, server := loopback.FreeAddress(t), loopback.FreeAddress(t), loopback.FreeAddress(t)
	start("etcd", "--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--listen-client-urls=http://"+client, "--advertise-client-urls=http://"+client,
		"--listen-peer-urls=http://"+peer, "--initial-advertise-peer-urls=http://"+peer, "--initial-cluster=default=http://"+peer)
	tokens, key := filepath.Join(dir, "tokens.csv"), filepath.Join(dir, "service-accounts.key")
	require.NoError(t, os.WriteFile(tokens, []byte(`secret,admin,admin,"system:masters"`+"\n"), 0o600))
	writeKey(t, key)
	host, port, err := net.SplitHostPort(server)
	require.NoError(t, err)
	start("kube-apiserver", "--etcd-servers=http://"+client, "--bind-address="+host, "--secure-port="+port, "--cert-dir="+dir, "--token-auth-file="+tokens,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--endpoint-reconciler-type=none", "--allow-privileged")
	admin := &rest.Config{Host: "https://" + server, BearerToken: "secret", QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	ready := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	eventually(t, "kube-apiserver is ready", func() error {
		response, err := ready.Get(admin.Host + "/readyz")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("readyz: %s", response.Status)
		}
		return nil
	})
	ready.CloseIdleConnections()
	return admin
}

func writeKey(t *testing.T, path string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600))
}
