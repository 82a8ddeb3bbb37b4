package admission

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	policy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"

	manifests "github.com/gpuslice/gpuslice/install/admission"
	"github.com/gpuslice/gpuslice/scheduler/webhook"
	"github.com/gpuslice/gpuslice/test/testcases"
)

// strict refuses fields that don't exist.
var strict = serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()

// server is the admission of an API server.
type server struct {
	client     *fake.Clientset
	mutating   *mutatingwebhook.Plugin
	validating *validatingwebhook.Plugin
	policy     *policy.Plugin
}

// write is one write of an object.
type write struct {
	as                    string
	node                  string // of the pod that a service account's token is bound to
	namespace             string // team-a where it is empty, and none for Nodes
	resource, subresource string
	operation             admission.Operation
	object, old           runtime.Object
}

// newServer has the manifests of install/admission, those of these files.
func newServer(t *testing.T, webhookAt net.Addr, files ...string) *server {
	t.Helper()
	return newServerWith(t, webhookAt, func(*admissionregistrationv1.ValidatingAdmissionPolicyBinding) {}, files...)
}

// newServerWith is newServer with other bindings of policies.
func newServerWith(t *testing.T, webhookAt net.Addr, change func(*admissionregistrationv1.ValidatingAdmissionPolicyBinding), files ...string) *server {
	t.Helper()
	objects := []runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}}}
	for _, file := range files {
		for _, o := range load(t, file) {
			if binding, is := o.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding); is {
				change(binding)
			}
			objects = append(objects, o)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s := &server{client: fake.NewClientset(objects...)}
	factory := informers.NewSharedInformerFactory(s.client, 0)
	var err error
	s.mutating, err = mutatingwebhook.NewMutatingWebhook(nil)
	require.NoError(t, err)
	s.validating, err = validatingwebhook.NewValidatingAdmissionWebhook(nil)
	require.NoError(t, err)
	s.policy, err = policy.NewPlugin(nil)
	require.NoError(t, err)
	for _, plugin := range []interface {
		SetExternalKubeClientSet(kubernetes.Interface)
		SetExternalKubeInformerFactory(informers.SharedInformerFactory)
		SetDrainedNotification(<-chan struct{})
		admission.InitializationValidator
	}{s.mutating, s.validating, s.policy} {
		plugin.SetExternalKubeClientSet(s.client)
		plugin.SetExternalKubeInformerFactory(factory)
		plugin.SetDrainedNotification(ctx.Done())
	}
	s.mutating.SetServiceResolver(resolver{webhookAt})
	s.validating.SetServiceResolver(resolver{webhookAt})
	s.policy.SetRESTMapper(meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion}))
	s.policy.SetDynamicClient(dynamicfake.NewSimpleDynamicClient(scheme.Scheme))
	s.policy.SetAuthorizer(authorizerfactory.NewAlwaysAllowAuthorizer())
	for _, plugin := range []admission.InitializationValidator{s.mutating, s.validating, s.policy} {
		require.NoError(t, plugin.ValidateInitialization())
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return s
}

// resolver finds the webhook's Service at an address of ours.
type resolver struct{ at net.Addr }

func (r resolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if service := fmt.Sprintf("%s/%s:%d", namespace, name, port); service != "kube-system/gpuslice-webhook:443" {
		return nil, fmt.Errorf("there is no service %s", service)
	}
	if r.at == nil {
		return nil, fmt.Errorf("no endpoints")
	}
	return &url.URL{Scheme: "https", Host: r.at.String()}, nil
}

// admit is what the API server does with a write before it stores it.
func (s *server) admit(w write, plugins ...admission.ValidationInterface) error {
	interfaces := admission.NewObjectInterfacesFromScheme(scheme.Scheme)
	written := w.object
	if written == nil { // a deletion
		written = w.old
	}
	kinds, _, err := scheme.Scheme.ObjectKinds(written)
	if err != nil {
		return err
	}
	who := &user.DefaultInfo{Name: w.as, Groups: []string{"system:authenticated"}}
	if w.as == testcases.Admin {
		who.Groups = append(who.Groups, "system:masters")
	}
	if w.node != "" {
		who.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {w.node}}
	}
	namespace := cmp.Or(w.namespace, "team-a")
	group := ""
	switch w.resource {
	case "nodes":
		namespace = ""
	case "resourceslices":
		namespace, group = "", kinds[0].Group
	}
	attributes := admission.NewAttributesRecord(w.object, w.old, kinds[0], namespace, "p",
		schema.GroupVersionResource{Group: group, Version: "v1", Resource: w.resource}, w.subresource, w.operation, nil, false, who)
	ctx := context.Background()
	for _, plugin := range plugins {
		if mutating, ok := plugin.(admission.MutationInterface); ok {
			if err := mutating.Admit(ctx, attributes, interfaces); err != nil {
				return err
			}
			continue
		}
		if err := plugin.Validate(ctx, attributes, interfaces); err != nil {
			return err
		}
	}
	return nil
}

// both is the mutating plugin as one of those that admit goes through.
type both struct{ *mutatingwebhook.Plugin }

func (both) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return nil
}

// annotationWrite is a case of the table.
func annotationWrite(tc testcases.Annotations) write {
	meta := func(annotations map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: cmp.Or(tc.Namespace, "team-a"), Name: "p", Annotations: annotations, Labels: tc.Labels}
	}
	w := write{as: tc.As, resource: tc.Resource, subresource: tc.Subresource, operation: admission.Operation(tc.Operation), namespace: tc.Namespace}
	pod := func(annotations map[string]string) runtime.Object {
		return &corev1.Pod{ObjectMeta: meta(annotations), Spec: corev1.PodSpec{SchedulerName: tc.SchedulerName, Containers: []corev1.Container{{Name: "main"}}}}
	}
	switch {
	case tc.Resource == "bindings" || tc.Subresource == "binding":
		w.object = &corev1.Binding{ObjectMeta: meta(tc.After), Target: corev1.ObjectReference{Kind: "Node", Name: "node-1"}}
	case w.operation == admission.Update:
		w.object, w.old = pod(tc.After), pod(tc.Before)
	default:
		w.object = pod(tc.After)
	}
	return w
}

// load decodes a manifest, strictly, and sets what the API server would.
func load(t *testing.T, file string) []runtime.Object {
	t.Helper()
	data, err := fs.ReadFile(manifests.Files, file)
	require.NoError(t, err)
	var objects []runtime.Object
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		document, err := reader.Read()
		if err == io.EOF {
			return objects
		}
		require.NoError(t, err)
		object, _, err := strict.Decode(document, nil, nil)
		require.NoError(t, err, file)
		everything := &metav1.LabelSelector{}
		switch o := object.(type) {
		case *admissionregistrationv1.MutatingWebhookConfiguration:
			for i := range o.Webhooks {
				require.Nil(t, o.Webhooks[i].ObjectSelector, "a label would switch it off")
				o.Webhooks[i].ObjectSelector, o.Webhooks[i].NamespaceSelector = everything, everything
			}
		case *admissionregistrationv1.ValidatingWebhookConfiguration:
			for i := range o.Webhooks {
				require.Nil(t, o.Webhooks[i].ObjectSelector, "a label would switch it off")
				require.Nil(t, o.Webhooks[i].NamespaceSelector, "a namespace's label would")
				o.Webhooks[i].ObjectSelector, o.Webhooks[i].NamespaceSelector = everything, everything
			}
		case *admissionregistrationv1.ValidatingAdmissionPolicy:
			require.Nil(t, o.Spec.MatchConstraints.ObjectSelector)
			require.Nil(t, o.Spec.MatchConstraints.NamespaceSelector)
			o.Spec.MatchConstraints.ObjectSelector, o.Spec.MatchConstraints.NamespaceSelector = everything, everything
		case *corev1.Secret:
			o.ResourceVersion = "1" // the fake API server gives none
		case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
			require.Nil(t, o.Spec.MatchResources)
		}
		objects = append(objects, object)
	}
}

// webhookServer is the real one, which keeps its certificate in this API server.
func webhookServer(t *testing.T, client kubernetes.Interface, listener net.Listener) {
	t.Helper()
	o := webhook.DefaultOptions()
	o.Client, o.Listener, o.Linger, o.Log = client, listener, 0, slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- webhook.Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return listener
}

// eventually waits for what informers and the certificate's keeper bring.
func eventually(t *testing.T, what string, ok func() error) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) { require.NoError(c, ok()) }, time.Minute, 10*time.Millisecond, what)
}

// inForce waits for the policy: it refuses this.
func inForce(t *testing.T, s *server, forged write) {
	t.Helper()
	eventually(t, "the policy is in force", func() error {
		if s.admit(forged, s.policy) == nil {
			return errors.New("a forged annotation is admitted")
		}
		return nil
	})
}
