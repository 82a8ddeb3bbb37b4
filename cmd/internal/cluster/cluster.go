// Package cluster reads and changes a cluster for the CLI: Nodes and Pods through the API server, agents and
// schedulers through its proxy. install/people-rbac.yaml has the permissions. A component that does not answer
// is a problem in the result, not an error.
package cluster

import (
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

// Cluster is a connection to the API server.
type Cluster struct {
	client kubernetes.Interface
	// get sends a request through the API server's proxy; pod is "name:port".
	get       func(ctx context.Context, namespace, pod, path string, query map[string]string) ([]byte, error)
	Namespace string // the default
	// systemNamespace has the agents and schedulers; empty: one of UsualNamespaces.
	systemNamespace string
}

// Connect reads the connection from the kubeconfig or the pod's service account. It sends no request.
func Connect(kubeconfig clientcmd.ClientConfig, systemNamespace string) (*Cluster, error) {
	const hint = "set --kubeconfig, --context or KUBECONFIG"
	config, err := kubeconfig.ClientConfig()
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
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w: check the kubeconfig", err)
	}
	get := func(ctx context.Context, namespace, pod, path string, query map[string]string) ([]byte, error) {
		return client.CoreV1().Pods(namespace).ProxyGet("", pod, "", strings.TrimPrefix(path, "/"), query).DoRaw(ctx)
	}
	return &Cluster{client, get, namespace, systemNamespace}, nil
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
