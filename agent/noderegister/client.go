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

// FieldManager is the agent as a writer: it removes what it has written and no longer writes.
const FieldManager = "gpuslice-agent"

// Client accesses the metadata of nodes.
type Client interface {
	Get(ctx context.Context, node string) (*metav1.PartialObjectMetadata, error)
	Patch(ctx context.Context, node string, patch []byte) (*metav1.PartialObjectMetadata, error)
	// PatchStatus takes a strategic merge patch, which can change one condition of several.
	PatchStatus(ctx context.Context, node string, patch []byte) error
}

// callTimeout includes waits that the server requests.
const callTimeout = 10 * time.Second

// LoadConfig returns the configuration of client-go: of a kubeconfig, or if that is empty of the pod's service account.
func LoadConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig != "" {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
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

// NewClient returns the client of a writer, by its field manager. It does not call the API server.
func NewClient(config *rest.Config, manager string) (Client, error) {
	config = metadata.ConfigFor(config)
	config.Timeout = callTimeout
	config.QPS, config.Burst = 2, 5
	config.WarningHandler = rest.NoWarnings{}
	m, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	return ClientOf(m, manager), nil
}

// ClientOf is for tests.
func ClientOf(m metadata.Interface, manager string) Client {
	return nodes{m.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}), manager}
}

type nodes struct {
	metadata.Getter
	manager string
}

// Get uses resource version 0: the API server can answer from its cache.
func (n nodes) Get(ctx context.Context, node string) (*metav1.PartialObjectMetadata, error) {
	return n.Getter.Get(ctx, node, metav1.GetOptions{ResourceVersion: "0"})
}

func (n nodes) Patch(ctx context.Context, node string, patch []byte) (*metav1.PartialObjectMetadata, error) {
	return n.Getter.Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: n.manager})
}

func (n nodes) PatchStatus(ctx context.Context, node string, patch []byte) error {
	_, err := n.Getter.Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: n.manager}, "status")
	return err
}
