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

// fieldManager is who the API server records as the writer of what a Client patches.
const fieldManager = "gpuslice-agent"

// Client reads and writes the metadata of nodes.
type Client interface {
	// Get reads it. It may be a moment old.
	Get(ctx context.Context, node string) (*metav1.PartialObjectMetadata, error)
	// Patch applies a JSON merge patch, and returns what there is afterwards.
	Patch(ctx context.Context, node string, patch []byte) (*metav1.PartialObjectMetadata, error)
}

// ClientConfig says how to reach the API server.
type ClientConfig struct {
	// Kubeconfig is a file; empty: the account of the pod that this runs in.
	Kubeconfig string
	// UserAgent is how the API server's log knows us, such as "gpuslice-agent/1.0".
	UserAgent string
}

// callTimeout is for one call, waits that the server asks for included.
const callTimeout = 10 * time.Second

// NewClient returns a client. It doesn't call the API server.
func NewClient(c ClientConfig) (Client, error) {
	config, err := c.Load()
	if err != nil {
		return nil, err
	}
	return newClient(config, c.UserAgent)
}

// Load finds the API server and the credentials, also for other clients of the agent.
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
		return nil, errors.New("no kubeconfig is given, and this doesn't run in a pod with a service account: give a kubeconfig, or run without an API server")
	}
	if err != nil {
		return nil, fmt.Errorf("the pod's service account: %w", err)
	}
	return config, nil
}

// newClient returns a client for a config.
func newClient(config *rest.Config, userAgent string) (Client, error) {
	config = metadata.ConfigFor(config) // protobuf where the server has it
	config.UserAgent = userAgent
	config.Timeout = callTimeout
	// Two calls in half a minute are normal; these are for the day that something is wrong.
	config.QPS, config.Burst = 2, 5
	config.WarningHandler = rest.NoWarnings{} // they are for people at a keyboard
	m, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	return nodes{m.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})}, nil
}

// nodes is a Client by client-go.
type nodes struct{ metadata.Getter }

// Get implements Client. Resource version 0 lets the API server answer from its cache.
func (n nodes) Get(ctx context.Context, node string) (*metav1.PartialObjectMetadata, error) {
	return n.Getter.Get(ctx, node, metav1.GetOptions{ResourceVersion: "0"})
}

// Patch implements Client.
func (n nodes) Patch(ctx context.Context, node string, patch []byte) (*metav1.PartialObjectMetadata, error) {
	return n.Getter.Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
}
