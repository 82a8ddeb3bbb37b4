// Package cluster reads and changes a cluster for the CLI: Nodes and Pods through the API server, agents and
// schedulers through its proxy. install/people-rbac.yaml has the permissions. A component that does not answer
// is a problem in the result, not an error.
package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	admissionv1 "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	appsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	batchv1 "k8s.io/client-go/kubernetes/typed/batch/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	policyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpuslice/gpuslice/cmd/internal/version"
)

// Cluster is a connection to the API server.
type Cluster struct {
	client client
	// get sends a request through the API server's proxy; pod is "name:port".
	get       func(ctx context.Context, namespace, pod, path string, query map[string]string) ([]byte, error)
	Namespace string // the default
	// systemNamespace has the agents and schedulers; empty: one of UsualNamespaces.
	systemNamespace string
}

// client has the groups in use of kubernetes.Interface, which links hundreds of packages.
type client interface {
	AdmissionregistrationV1() admissionv1.AdmissionregistrationV1Interface
	AppsV1() appsv1.AppsV1Interface
	BatchV1() batchv1.BatchV1Interface
	CoreV1() corev1.CoreV1Interface
	PolicyV1() policyv1.PolicyV1Interface
	ResourceV1() resourcev1.ResourceV1Interface
}

type groups struct {
	admission admissionv1.AdmissionregistrationV1Interface
	apps      appsv1.AppsV1Interface
	batch     batchv1.BatchV1Interface
	core      corev1.CoreV1Interface
	policy    policyv1.PolicyV1Interface
	resource  resourcev1.ResourceV1Interface
}

func (g groups) AdmissionregistrationV1() admissionv1.AdmissionregistrationV1Interface {
	return g.admission
}
func (g groups) AppsV1() appsv1.AppsV1Interface             { return g.apps }
func (g groups) BatchV1() batchv1.BatchV1Interface          { return g.batch }
func (g groups) CoreV1() corev1.CoreV1Interface             { return g.core }
func (g groups) PolicyV1() policyv1.PolicyV1Interface       { return g.policy }
func (g groups) ResourceV1() resourcev1.ResourceV1Interface { return g.resource }

// Connect reads the connection from the kubeconfig or the pod's service account. It sends no request.
func Connect(kubeconfig clientcmd.ClientConfig, systemNamespace string) (*Cluster, error) {
	const hint = "set --kubeconfig, --context or KUBECONFIG"
	config, err := kubeconfig.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("there is no kubeconfig: " + hint)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w: %s", err, hint)
	}
	namespace, _, err := kubeconfig.Namespace()
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w: %s", err, hint)
	}
	return connect(config, namespace, systemNamespace)
}

func connect(config *rest.Config, namespace, systemNamespace string) (*Cluster, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = "gpuslice/" + version.String()
	config.QPS, config.Burst = 50, 100
	config.Wrap(limitResponses)
	var clients groups
	var errs [6]error
	clients.admission, errs[0] = admissionv1.NewForConfig(config)
	clients.apps, errs[1] = appsv1.NewForConfig(config)
	clients.core, errs[2] = corev1.NewForConfig(config)
	clients.policy, errs[3] = policyv1.NewForConfig(config)
	clients.batch, errs[4] = batchv1.NewForConfig(config)
	clients.resource, errs[5] = resourcev1.NewForConfig(config)
	if err := cmp.Or(errs[:]...); err != nil {
		return nil, fmt.Errorf("connect to the API server: %w: check the kubeconfig", err)
	}
	get := func(ctx context.Context, namespace, pod, path string, query map[string]string) ([]byte, error) {
		return clients.core.Pods(namespace).ProxyGet("", pod, "", strings.TrimPrefix(path, "/"), query).DoRaw(ctx)
	}
	return &Cluster{clients, get, namespace, systemNamespace}, nil
}

// maxResponse limits a response through the proxy, in bytes: any pod may have sent it.
const maxResponse = 32 << 20

func limitResponses(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err == nil && response.Body != nil && strings.Contains(r.URL.Path, "/proxy/") {
			response.Body = http.MaxBytesReader(nil, response.Body, maxResponse)
		}
		return response, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

const responseTimeout = 10 * time.Second

var (
	errNoPort   = errors.New("the pod has no such port")
	errNotKnown = errors.New("not known")
)

func (c *Cluster) request(ctx context.Context, pod *v1.Pod, port, path string, query map[string]string, into any) error {
	number := int32(0)
	for _, container := range pod.Spec.Containers {
		for _, p := range container.Ports {
			if p.Name == port {
				number = p.ContainerPort
			}
		}
	}
	if number == 0 {
		return fmt.Errorf("port %q: %w", port, errNoPort)
	}
	ctx, cancel := context.WithTimeout(ctx, responseTimeout)
	defer cancel()
	data, err := c.get(ctx, pod.Namespace, pod.Name+":"+strconv.Itoa(int(number)), path, query)
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return fmt.Errorf("the response is larger than %d MiB", maxResponse>>20)
	}
	if err != nil {
		return withMessage(err, data)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("decode the response: %w", err)
	}
	return nil
}

// withMessage returns the server's message, which client-go drops.
func withMessage(err error, body []byte) error {
	text := strings.TrimSpace(string(body))
	if text == "" || strings.HasPrefix(text, "{") || len(text) > 1<<10 {
		return err
	}
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: %s", errNotKnown, text)
	}
	return errors.New(text)
}

// Values of the label app.kubernetes.io/component, and names of the ports.
const (
	componentAgent     = "agent"
	componentScheduler = "scheduler"
	portMetrics        = "metrics"
	portHTTP           = "http"
)

// UsualNamespaces are searched if no namespace is named.
var UsualNamespaces = []string{"gpuslice-system", "gpuslice", "kube-system"}

var errNotFound = errors.New("not found")

// servers returns the pods of a component, ready ones first, and the names of other pods with its labels: any user can
// set these labels, so only the named namespace, or the only one of UsualNamespaces with such pods, is trusted.
func (c *Cluster) servers(ctx context.Context, component string) (ours []v1.Pod, others []string, err error) {
	pods, err := c.labelled(ctx, component)
	if err != nil {
		return nil, nil, fmt.Errorf("find gpuslice's %s: %w", component, err)
	}
	in := map[string]bool{}
	for _, p := range pods {
		in[p.Namespace] = true
	}
	candidates := UsualNamespaces
	if c.systemNamespace != "" {
		candidates = []string{c.systemNamespace}
	}
	found := slices.DeleteFunc(slices.Clone(candidates), func(namespace string) bool { return !in[namespace] })
	for _, p := range pods {
		if len(found) == 1 && p.Namespace == found[0] {
			ours = append(ours, p)
		} else {
			others = append(others, p.Namespace+"/"+p.Name)
		}
	}
	slices.SortStableFunc(ours, func(a, b v1.Pod) int { return cmp.Compare(readiness(&a), readiness(&b)) })
	slices.Sort(others)
	switch {
	case len(found) > 1:
		return nil, others, fmt.Errorf("gpuslice's %s is %w: several namespaces have pods with its labels (%s): set --system-namespace", component, errNotFound, strings.Join(found, ", "))
	case len(found) == 1:
		return ours, others, nil
	}
	where := "namespace " + strings.Join(candidates, ", ")
	switch {
	case len(others) > 0:
		err = fmt.Errorf("gpuslice's %s is %w in %s; pods elsewhere have its labels and are not trusted (%s): set --system-namespace", component, errNotFound, where, some(others))
	case c.systemNamespace != "":
		err = fmt.Errorf("gpuslice's %s is %w in %s: no pod has the labels %s: check --system-namespace", component, errNotFound, where, labels(component))
	default:
		err = fmt.Errorf("gpuslice's %s is %w: no pod has the labels %s: install it, or set --system-namespace", component, errNotFound, labels(component))
	}
	return nil, others, err
}

func labels(component string) string {
	return "app.kubernetes.io/name=gpuslice,app.kubernetes.io/component=" + component
}

func (c *Cluster) labelled(ctx context.Context, component string) (pods []v1.Pod, err error) {
	list := func(namespace string) error {
		some, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: labels(component)})
		if err != nil {
			return err
		}
		for _, p := range some.Items {
			if p.Status.Phase != v1.PodSucceeded && p.Status.Phase != v1.PodFailed {
				pods = append(pods, p)
			}
		}
		return nil
	}
	all := list(metav1.NamespaceAll)
	if !apierrors.IsForbidden(all) {
		return pods, all
	}
	if c.systemNamespace != "" {
		return pods, list(c.systemNamespace)
	}
	for _, namespace := range UsualNamespaces {
		if err := list(namespace); err != nil && !apierrors.IsForbidden(err) {
			return nil, err
		}
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("%w; none found in the namespaces %s: set --system-namespace", all, strings.Join(UsualNamespaces, ", "))
	}
	return pods, nil
}

func readiness(p *v1.Pod) int {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady && c.Status == v1.ConditionTrue && p.DeletionTimestamp == nil {
			return 0
		}
	}
	return 1
}

const maxNames = 5

func some(names []string) string {
	if len(names) <= maxNames {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
}
