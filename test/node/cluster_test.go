//go:build root

package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuslice/gpuslice/test/harness"
)

// kubelet plays the kubelet for a device plugin: it is registered with, and follows
// the plugin's devices.
type kubelet struct {
	v1beta1.UnimplementedRegistrationServer
	dir     string
	devices chan int // how many each message has
}

func startKubelet(b *testing.B) *kubelet {
	dir, err := os.MkdirTemp("", "gsk") // a socket's path is short
	require.NoError(b, err)
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	require.NoError(b, err)
	k := &kubelet{dir: dir, devices: make(chan int, 64)}
	server := grpc.NewServer()
	v1beta1.RegisterRegistrationServer(server, k)
	go func() { _ = server.Serve(listener) }() // Stop ends it
	b.Cleanup(func() {
		server.Stop()
		require.NoError(b, os.RemoveAll(dir))
	})
	return k
}

// Register implements v1beta1.RegistrationServer.
func (k *kubelet) Register(_ context.Context, request *v1beta1.RegisterRequest) (*v1beta1.Empty, error) {
	conn, err := grpc.NewClient("unix:"+filepath.Join(k.dir, request.GetEndpoint()), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	go func() {
		defer conn.Close()
		stream, err := v1beta1.NewDevicePluginClient(conn).ListAndWatch(context.Background(), &v1beta1.Empty{})
		for err == nil { // until the plugin ends
			var list *v1beta1.ListAndWatchResponse
			if list, err = stream.Recv(); err == nil {
				k.devices <- len(list.GetDevices())
			}
		}
	}()
	return &v1beta1.Empty{}, nil
}

// waitDevices waits until the plugin has offered so many.
func (k *kubelet) waitDevices(b *testing.B, want int) {
	for {
		select {
		case got := <-k.devices:
			if got == want {
				return
			}
		case <-time.After(time.Minute):
			require.Fail(b, "no plugin offers its devices")
		}
	}
}

// startAPIServer starts an HTTP server that serves and patches the metadata of the tests' node, as an API
// server does. It returns a kubeconfig for it, and a channel that is closed when the node was patched.
func startAPIServer(b *testing.B) (kubeconfig string, patched <-chan struct{}) {
	var (
		mu    sync.Mutex
		once  sync.Once
		wrote = make(chan struct{})
	)
	node := metav1.PartialObjectMetadata{}
	node.APIVersion, node.Kind = "meta.k8s.io/v1", "PartialObjectMetadata"
	node.Name, node.Labels, node.Annotations = harness.NodeName, map[string]string{}, map[string]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodPatch {
			if err := json.NewDecoder(r.Body).Decode(&node); err != nil { // adds to maps
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			once.Do(func() { close(wrote) })
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(node)
	}))
	b.Cleanup(server.Close)
	path := filepath.Join(b.TempDir(), "kubeconfig")
	require.NoError(b, os.WriteFile(path, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`, server.URL), 0o600))
	return path, wrote
}
