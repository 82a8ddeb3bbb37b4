//go:build kueue

package kueue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// patience is for what a busy machine does at its own pace.
const patience = 3 * time.Minute

// Ports of programs, at the cluster's own address.
const kueuePort, kueueHealthPort, webhookPort = 9443, 8081, 8443

// cluster is a control plane with Kueue, our webhook and our scheduler; its node is an object.
type cluster struct {
	*kube.Cluster
	client.Client
	at            string // the address of all programs
	program       string // Kueue
	source        string // of Kueue
	configuration string // of Kueue, as the page has it
	running       *harness.Process
}

func newCluster(t *testing.T, configuration string) *cluster {
	t.Helper()
	ctx := t.Context()
	tools, err := exec.CommandContext(ctx, "../setup.sh", "--where-kueue").Output()
	require.NoError(t, err)
	c := &cluster{program: filepath.Join(strings.TrimSpace(string(tools)), "kueue"), source: source(t), configuration: configuration}
	t.Chdir("../..") // where this repository's programs are found
	c.Cluster, err = kube.NewControlPlane(ctx)
	t.Cleanup(func() {
		if c.Cluster != nil {
			assert.NoError(t, c.Close(context.Background()))
		}
	})
	require.NoError(t, err)
	admin, err := c.Config(kube.Admin)
	require.NoError(t, err)
	host, err := url.Parse(admin.Host)
	require.NoError(t, err)
	c.at = host.Hostname()
	require.NoError(t, kueue.AddToScheme(scheme.Scheme))
	c.Client, err = client.New(admin, client.Options{})
	require.NoError(t, err)

	kubeconfig, err := c.Kubeconfig(kube.Admin)
	require.NoError(t, err)
	manager, err := kube.Tool("kube-controller-manager")
	require.NoError(t, err)
	c.start(t, "kube-controller-manager", nil, manager, "--kubeconfig="+kubeconfig, "--leader-elect=false", "--secure-port=0",
		"--controllers=job-controller,serviceaccount-controller,garbage-collector-controller")
	kubectl, err := kube.Tool("kubectl")
	require.NoError(t, err)
	kustomized, err := exec.CommandContext(ctx, kubectl, "kustomize", filepath.Join(c.source, "config/default")).Output()
	require.NoError(t, err)
	c.apply(t, kustomized)
	for _, file := range []string{"scheduler/scheduler.yaml", "admission/webhook.yaml", "admission/configurations.yaml", "admission/policy.yaml"} {
		text, err := os.ReadFile(filepath.Join("install", file))
		require.NoError(t, err)
		c.apply(t, text)
	}
	c.startOurs(t)
	c.startKueue(t, nil)
	c.until(t, func(ctx context.Context) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: "default"}, Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Limits: share(1, 1000, 0).list()}}}}}
		if err := c.Create(ctx, pod, client.DryRunAll); err != nil {
			return err
		}
		if pod.Spec.SchedulerName != kube.Framework.SchedulerName() {
			return errors.New("our webhook is not called")
		}
		return nil
	})
	return c
}

// start starts a program that runs until the test's end, or until the function is called.
func (c *cluster) start(t *testing.T, name string, env []string, path string, args ...string) (p *harness.Process) {
	t.Helper()
	p, err := harness.StartProcess(c.Dir, name, env, path, args...)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s:\n%s", name, p.LogTail(40))
		}
		p.Kill()
	})
	return p
}

// as is the kubeconfig of a service account: an administrator's, that acts as it.
func (c *cluster) as(t *testing.T, namespace, account string) string {
	t.Helper()
	admin, err := c.Kubeconfig(kube.Admin)
	require.NoError(t, err)
	text, err := os.ReadFile(admin)
	require.NoError(t, err)
	var config map[string]any
	require.NoError(t, yaml.Unmarshal(text, &config))
	user := kube.ServiceAccount(namespace, account)
	config["users"].([]any)[0].(map[string]any)["user"].(map[string]any)["as"] = user.Name
	config["users"].([]any)[0].(map[string]any)["user"].(map[string]any)["as-groups"] = append(user.Groups, "system:authenticated")
	text, err = yaml.Marshal(config)
	require.NoError(t, err)
	path := filepath.Join(c.Dir, account+".kubeconfig")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

// apply creates the objects of manifests: but not what runs in pods, which are processes here. Webhooks are called by their
// Services, which are names of this machine.
func (c *cluster) apply(t *testing.T, manifests []byte) {
	t.Helper()
	ports := map[string]int64{"kueue-webhook-service": kueuePort, "gpuslice-webhook": webhookPort}
	var objects bytes.Buffer
	for document := range bytes.SplitSeq(manifests, []byte("\n---\n")) {
		var object map[string]any
		require.NoError(t, yaml.Unmarshal(document, &object))
		switch object["kind"] {
		case nil, "Deployment", "APIService", "PodDisruptionBudget":
			continue
		case "Service":
			if ports[object["metadata"].(map[string]any)["name"].(string)] == 0 {
				continue
			}
			object["spec"] = map[string]any{"type": "ExternalName", "externalName": c.at}
		}
		setPorts(object, ports)
		text, err := yaml.Marshal(object)
		require.NoError(t, err)
		fmt.Fprintf(&objects, "---\n%s", text)
	}
	kubectl, err := kube.Tool("kubectl")
	require.NoError(t, err)
	kubeconfig, err := c.Kubeconfig(kube.Admin)
	require.NoError(t, err)
	apply := exec.CommandContext(t.Context(), kubectl, "--kubeconfig="+kubeconfig, "apply", "--server-side", "-f", "-")
	apply.Stdin = &objects
	output, err := apply.CombinedOutput()
	require.NoError(t, err, string(output))
}

// setPorts sets the port in all references to these Services.
func setPorts(in any, ports map[string]int64) {
	switch in := in.(type) {
	case map[string]any:
		if service, is := in["service"].(map[string]any); is {
			name, _ := service["name"].(string)
			if port := ports[name]; port != 0 {
				service["port"] = port
			}
		}
		for _, value := range in {
			setPorts(value, ports)
		}
	case []any:
		for _, value := range in {
			setPorts(value, ports)
		}
	}
}

// startOurs starts the webhook and the scheduler, with the rights and the settings that are shipped.
func (c *cluster) startOurs(t *testing.T) {
	t.Helper()
	program, err := harness.Artefact("bin", "gpuslice-scheduler")
	require.NoError(t, err)
	c.start(t, "gpuslice-webhook", nil, program, "webhook", "--kubeconfig="+c.as(t, "kube-system", "gpuslice-webhook"),
		"--address="+net.JoinHostPort(c.at, fmt.Sprint(webhookPort)))
	text, err := kube.ShippedConfig(kube.PluginConfig).Connect(c.as(t, "kube-system", "gpuslice-scheduler")).Text()
	require.NoError(t, err)
	config := filepath.Join(c.Dir, "scheduler.yaml")
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	c.start(t, "gpuslice-scheduler", nil, program, "--config="+config, "--secure-port=0", "--debug-address=")
	require.NoError(t, kube.CreateNode(t.Context(), c.API, "node", 4, kube.GPUs(0, 4, 80<<10, nil)))
}

// startKueue starts Kueue (again) with its own configuration, the page's, and more, and waits until its webhooks are called.
func (c *cluster) startKueue(t *testing.T, more map[string]any) {
	t.Helper()
	if c.running != nil {
		c.running.Kill()
	}
	certificates := filepath.Join(c.Dir, "kueue-certificates")
	require.NoError(t, os.MkdirAll(certificates, 0o700))
	shipped, err := os.ReadFile(filepath.Join(c.source, "config/components/manager/controller_manager_config.yaml"))
	require.NoError(t, err)
	var config map[string]any
	require.NoError(t, yaml.Unmarshal(shipped, &config))
	require.NoError(t, yaml.Unmarshal([]byte(c.configuration), &config))
	config["health"] = map[string]any{"healthProbeBindAddress": net.JoinHostPort(c.at, fmt.Sprint(kueueHealthPort))}
	config["metrics"] = map[string]any{"bindAddress": "0"}
	config["webhook"] = map[string]any{"port": kueuePort, "host": c.at, "certDir": certificates}
	config["leaderElection"] = map[string]any{"leaderElect": false}
	config["namespace"] = "kueue-system"
	config["featureGates"] = map[string]any{"VisibilityOnDemand": false} // its API server is not called here
	for key, value := range more {
		if fields, is := config[key].(map[string]any); is {
			maps.Copy(fields, value.(map[string]any))
			continue
		}
		config[key] = value
	}
	text, err := yaml.Marshal(config)
	require.NoError(t, err)
	path := filepath.Join(c.Dir, "kueue.yaml")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	c.running = c.start(t, "kueue", []string{"KUBECONFIG=" + c.as(t, "kueue-system", "kueue-controller-manager")}, c.program, "--config="+path)
	// The kubelet mounts this Secret, which Kueue fills.
	c.until(t, func(ctx context.Context) error {
		var secret corev1.Secret
		if err := c.Get(ctx, client.ObjectKey{Namespace: "kueue-system", Name: "kueue-webhook-server-cert"}, &secret); err != nil {
			return err
		}
		if len(secret.Data["tls.crt"]) == 0 {
			return errors.New("Kueue has made no certificate")
		}
		for name, data := range secret.Data {
			if err := os.WriteFile(filepath.Join(certificates, name), data, 0o600); err != nil {
				return err
			}
		}
		return nil
	})
	c.until(t, func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(c.at, fmt.Sprint(kueueHealthPort))+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("Kueue's readyz: %s", response.Status)
		}
		// Each API server reads the configurations of webhooks a moment later.
		return c.Create(ctx, &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{GenerateName: "ready-"}}, client.DryRunAll)
	})
}

// until waits for what probe checks, or for Kueue's end.
func (c *cluster) until(t *testing.T, probe func(context.Context) error) {
	t.Helper()
	var ended error
	err := harness.Until(t.Context(), patience, func(ctx context.Context) error {
		select {
		case <-c.running.Exited():
			ended = fmt.Errorf("Kueue has ended: %w", c.running.Err())
			return nil
		default:
			return probe(ctx)
		}
	})
	require.NoError(t, errors.Join(err, ended))
}
