// Package cluster is the CLI's view of a cluster: Nodes and Pods by the API server, and what
// agents and schedulers say of themselves through its proxy. It changes what people ask it
// to: a request to resize a pod, the cordon of a card, evictions. Each needs rights that
// install/people-rbac.yaml has.
//
// What a part of the cluster doesn't answer is a problem in the answer, not its end.
package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpuslice/gpuslice/cmd/internal/version"
)

// Options say which cluster, as kubectl's flags do.
type Options struct {
	Kubeconfig, Context, Namespace string
}

// Cluster is a connection.
type Cluster struct {
	client kubernetes.Interface
	// get asks a server behind the API server's proxy: a pod of the namespace, by "name:port".
	get func(ctx context.Context, namespace, pod, path string, query map[string]string) ([]byte, error)
	// Namespace is what names without one are of.
	Namespace string
}

// Connect reads the kubeconfig as kubectl does: --kubeconfig, $KUBECONFIG, ~/.kube/config, or
// the account of the pod that this runs in. It calls nobody.
func Connect(o Options) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.Context})
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reach the API server: %w: name a kubeconfig by --kubeconfig or KUBECONFIG", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, fmt.Errorf("reach the API server: %w", err)
	}
	return connect(config, cmp.Or(o.Namespace, namespace))
}

// Found says whether there is a kubeconfig to connect by, or an account of a pod.
func Found(o Options) bool {
	_, err := Connect(o)
	return err == nil
}

func connect(config *rest.Config, namespace string) (*Cluster, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = "gpuslice/" + version.String()
	config.QPS, config.Burst = 50, 100
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reach the API server: %w", err)
	}
	return &Cluster{client, through(client), namespace}, nil
}

// through is the way through the API server's proxy.
func through(client kubernetes.Interface) func(context.Context, string, string, string, map[string]string) ([]byte, error) {
	return func(ctx context.Context, namespace, pod, path string, query map[string]string) ([]byte, error) {
		request := client.CoreV1().RESTClient().Get().Namespace(namespace).Resource("pods").
			Name(pod).SubResource("proxy").Suffix(strings.TrimPrefix(path, "/"))
		for key, value := range query {
			request = request.Param(key, value)
		}
		return request.DoRaw(ctx)
	}
}

// Components that answer through the proxy: the label app.kubernetes.io/component of their
// pods, and the name of their port.
const (
	componentAgent     = "agent"
	componentScheduler = "scheduler"
	portMetrics        = "metrics"
	portHTTP           = "http"
)

// usualNamespaces are where gpuslice is installed to.
var usualNamespaces = []string{"gpuslice-system", "gpuslice", "kube-system"}

// answerTimeout is for one answer through the proxy.
const answerTimeout = 10 * time.Second

// servers are the pods of a component, ready ones first.
func (c *Cluster) servers(ctx context.Context, component string) ([]v1.Pod, error) {
	ours := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=gpuslice,app.kubernetes.io/component=" + component}
	list, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, ours)
	for i := 0; apierrors.IsForbidden(err) && i < len(usualNamespaces); i++ { // who may not list all may list some
		all := err
		if list, err = c.client.CoreV1().Pods(usualNamespaces[i]).List(ctx, ours); err == nil && len(list.Items) == 0 {
			err = all
		}
	}
	if err != nil {
		return nil, fmt.Errorf("find gpuslice's %s: %w", component, err)
	}
	slices.SortStableFunc(list.Items, func(a, b v1.Pod) int { return cmp.Compare(readiness(&a), readiness(&b)) })
	return list.Items, nil
}

func readiness(p *v1.Pod) int {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
			return 0
		}
	}
	return 1
}

var errNoPort = errors.New("its pod names no such port")

// ask asks a pod's server through the API server's proxy, and decodes its answer.
func (c *Cluster) ask(ctx context.Context, pod *v1.Pod, port, path string, query map[string]string, into any) error {
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
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	data, err := c.get(ctx, pod.Namespace, pod.Name+":"+strconv.Itoa(int(number)), path, query)
	if err != nil {
		return explain(err, data)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("its answer can't be read: %w", err)
	}
	return nil
}

// explain is the server's own words, where it had any: client-go says only that the server
// doesn't know how to answer.
func explain(err error, body []byte) error {
	text := strings.TrimSpace(string(body))
	if text == "" || strings.HasPrefix(text, "{") || len(text) > 1<<10 {
		return err
	}
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: %s", errNotKnown, text)
	}
	return errors.New(text)
}

// errNotKnown is of a server that knows no such thing.
var errNotKnown = errors.New("not known")
