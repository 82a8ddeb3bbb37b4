// Package cluster is the CLI's view of a cluster: Nodes and Pods by the API server, and what
// agents and schedulers say of themselves through its proxy. It changes what people ask it
// to: a request to resize a pod, the cordon of a GPU, evictions. Each needs rights that
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
	"net/http"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpuslice/gpuslice/cmd/internal/version"
)

// Options say which cluster, as kubectl's flags do.
type Options struct {
	Kubeconfig, Context, Namespace string
	// SystemNamespace is gpuslice's own; empty is the one of the usual ones that it is in.
	SystemNamespace string
}

// Cluster is a connection.
type Cluster struct {
	client kubernetes.Interface
	// get asks a server behind the API server's proxy: a pod of the namespace, by "name:port".
	get func(ctx context.Context, namespace, pod, path string, query map[string]string) ([]byte, error)
	// Namespace is what names without one are of.
	Namespace string
	// systemNamespace is the one whose agents and schedulers are believed; empty is one of UsualNamespaces.
	systemNamespace string
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
	return connect(config, cmp.Or(o.Namespace, namespace), o.SystemNamespace)
}

// Found says whether there is a kubeconfig to connect by, or an account of a pod.
func Found(o Options) bool {
	_, err := Connect(o)
	return err == nil
}

func connect(config *rest.Config, namespace, systemNamespace string) (*Cluster, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = "gpuslice/" + version.String()
	config.QPS, config.Burst = 50, 100
	config.Wrap(boundAnswers)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reach the API server: %w", err)
	}
	return &Cluster{client, through(client), namespace, systemNamespace}, nil
}

// mostAnswerBytes bounds what is read of one answer through the proxy.
const mostAnswerBytes = 32 << 20

// boundAnswers has no answer through the proxy read further than mostAnswerBytes: the API server passes on
// whatever a pod says.
func boundAnswers(next http.RoundTripper) http.RoundTripper {
	return bounded(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err == nil && response.Body != nil && strings.Contains(r.URL.Path, "/proxy/") {
			response.Body = http.MaxBytesReader(nil, response.Body, mostAnswerBytes)
		}
		return response, err
	})
}

type bounded func(*http.Request) (*http.Response, error)

func (f bounded) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

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

// answerTimeout is for one answer through the proxy.
const answerTimeout = 10 * time.Second

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
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return fmt.Errorf("its answer is larger than %d MiB, and not read", mostAnswerBytes>>20)
	}
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
