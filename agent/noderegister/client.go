package noderegister

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const fieldManager = "gpuslice-agent"

// Client accesses the metadata of nodes.
type Client interface {
	Get(ctx context.Context, node string) (*metav1.PartialObjectMetadata, error)
	Patch(ctx context.Context, node string, patch []byte) (*metav1.PartialObjectMetadata, error)
}

// ClientConfig configures access to the API server.
type ClientConfig struct {
	Kubeconfig string
	UserAgent  string
}

// callTimeout includes waits that the server requests.
const callTimeout = 10 * time.Second

// NewClient does not call the API server.
func NewClient(c ClientConfig) (Client, error) {
	config, err := c.Load()
	if err != nil {
		return nil, err
	}
	return newClient(config, c.UserAgent)
}

// Load returns the configuration of client-go.
func (c ClientConfig) Load() (*rest.Config, error) {
	if c.Kubeconfig != "" {
		config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w", c.Kubeconfig, err)
		}
		return config, nil
	}
	config, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("no kubeconfig, and not in a pod with a service account: set a kubeconfig, or run without an API server")
	}
	if err != nil {
		return nil, fmt.Errorf("the pod's service account: %w", err)
	}
	return config, nil
}

func newClient(config *rest.Config, userAgent string) (Client, error) {
	config = metadata.ConfigFor(config)
	config.UserAgent = userAgent
	config.Timeout = callTimeout
	config.QPS, config.Burst = 2, 5
	config.WarningHandler = rest.NoWarnings{}
	m, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	return nodes{m.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})}, nil
}

type nodes struct{ metadata.Getter }

// Get uses resource version 0: the API server can answer from its cache.
func (n nodes) Get(ctx context.Context, node string) (*metav1.PartialObjectMetadata, error) {
	return n.Getter.Get(ctx, node, metav1.GetOptions{ResourceVersion: "0"})
}

func (n nodes) Patch(ctx context.Context, node string, patch []byte) (*metav1.PartialObjectMetadata, error) {
	return n.Getter.Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
}
