package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/agent/nodeconfig"
	"github.com/gpuslice/gpuslice/agent/noderegister"
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
)

// apiServer is an API server with one node, as far as its metadata.
type apiServer struct {
	*httptest.Server
	mu     sync.Mutex
	object metav1.PartialObjectMetadata
	last   []byte // the last patch
}

// removed returns whether the last patch removes an annotation, or does not have it.
func (s *apiServer) removed(annotation string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var patch struct {
		Metadata struct{ Annotations map[string]*string }
	}
	return s.last != nil && json.Unmarshal(s.last, &patch) == nil && patch.Metadata.Annotations[annotation] == nil
}

func newAPIServer(t *testing.T, name string, labels map[string]string) *apiServer {
	s := &apiServer{}
	s.object.APIVersion, s.object.Kind = "meta.k8s.io/v1", "PartialObjectMetadata"
	s.object.Name, s.object.Labels, s.object.Annotations = name, labels, map[string]string{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.URL.Path != "/api/v1/nodes/"+name {
			http.NotFound(w, r)
			return
		}
		if r.Method == http.MethodPatch {
			body, err := io.ReadAll(r.Body)
			if err == nil {
				s.last = body
				err = json.Unmarshal(body, &s.object) // adds to maps, and does not remove: see removed
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.object)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *apiServer) kubeconfig(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`, s.URL)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func (s *apiServer) read(key string) (annotation, label string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.object.Annotations[key], s.object.Labels[key]
}

// Schedulers are notified of the GPUs, and the node's labels choose its configuration.
func TestAgentRegistersItsNode(t *testing.T) {
	o := testOptions(t)
	server := newAPIServer(t, "node-1", map[string]string{"pool": "infer"})
	o.KubernetesAPI, o.Kubeconfig, o.GaiaModelLabel = apiOn, server.kubeconfig(t), true
	o.NodeConfigFile = filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(o.NodeConfigFile, []byte(`{"nodeconfig":[{"matchlabels":{"pool":"infer"},"devicesplitcount":7}]}`), 0o600))
	startRuntime(t, o.NRISocket)
	stop, log := o.run(t)

	var devices []struct {
		ID     string `json:"id"`
		Count  int    `json:"count"`
		Memory int    `json:"devmem"`
		Health bool   `json:"health"`
	}
	require.Eventually(t, func() bool {
		text, _ := server.read(api.AnnotationHAMiRegister)
		return json.Unmarshal([]byte(text), &devices) == nil && len(devices) == 1 && devices[0].Count == 7 && devices[0].Health
	}, 60*time.Second, 5*time.Millisecond, "%v", log)
	assert.Equal(t, 143771, devices[0].Memory)
	_, model := server.read("gaia.tencent.com/gpu-model")
	assert.Equal(t, "H200", model)
	require.NoError(t, stop())
	text, _ := server.read(api.AnnotationHAMiRegister)
	devices = nil
	require.NoError(t, json.Unmarshal([]byte(text), &devices))
	assert.False(t, devices[0].Health, "one that is stopped takes no more containers")
}

// Schedulers see what docker's containers have: such a claim is only in the node's ledger.
func TestAgentPublishesWhatNoSchedulerPlaced(t *testing.T) {
	o := testOptions(t)
	server := newAPIServer(t, "node-1", nil)
	o.KubernetesAPI, o.Kubeconfig = apiOn, server.kubeconfig(t)
	startRuntime(t, o.NRISocket)
	stop, log := o.run(t)
	others := func() (use *api.NodeUse, gpu string) {
		text, _ := server.read(api.AnnotationNodeGPUs)
		var published api.NodeGPUs
		if json.Unmarshal([]byte(text), &published) != nil || len(published.GPUs) != 1 {
			return nil, ""
		}
		return published.GPUs[0].Others, published.GPUs[0].UUID
	}
	var gpu string
	require.Eventually(t, func() bool { _, gpu = others(); return gpu != "" }, 60*time.Second, 5*time.Millisecond, "%v", log)

	store, err := ledger.Open(o.StateDir)
	require.NoError(t, err)
	defer store.Close()
	shares := []grant.Share{{UUID: gpu, MemoryMiB: 4096, CorePercent: 30}}
	_, err = store.Claim(t.Context(), ledger.Claim{ContainerID: "docker1", Owner: ledger.OwnerRuntime, Container: "c", Shares: shares},
		map[string]grant.GPU{gpu: {UUID: gpu, MemoryMiB: 100000, CorePercent: 100, Replicas: 10}}, func(string) error { return nil })
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		use, _ := others()
		return use != nil && *use == api.NodeUse{MemoryMiB: 4096, Cores: 30, Replicas: 1}
	}, 60*time.Second, 5*time.Millisecond, "%v", log)
	require.NoError(t, store.Release(t.Context(), "docker1"))
	require.Eventually(t, func() bool { use, gpu := others(); return use == nil && gpu != "" }, 60*time.Second, 5*time.Millisecond, "%v", log)
	require.NoError(t, stop())
}

// It works without an API server: one that is not configured, and one that
// isn't there.
func TestAgentWithoutAnAPIServer(t *testing.T) {
	for _, test := range []struct {
		description, api, kubeconfig string
		want                         string // of an error at the start
	}{
		{"none", apiAuto, "", ""},
		{"off", apiOff, "/nonexistent", ""},
		{"on and none known", apiOn, "", "--kubernetes-api=on: no kubeconfig, and not in a pod"},
		{"a kubeconfig that is missing", apiAuto, "/nonexistent", ""},
		{"on and a kubeconfig that is missing", apiOn, "/nonexistent", "--kubernetes-api=on: kubeconfig /nonexistent"},
	} {
		t.Run(test.description, func(t *testing.T) {
			o := testOptions(t)
			o.KubernetesAPI, o.Kubeconfig = test.api, test.kubeconfig
			api, err := o.apiServer(quietLog)
			if test.want != "" {
				require.ErrorContains(t, err, test.want)
				return
			}
			require.NoError(t, err)
			assert.Nil(t, api)
		})
	}
	t.Run("a pod without a token", func(t *testing.T) {
		t.Setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
		t.Setenv("KUBERNETES_SERVICE_PORT", "1")
		o := testOptions(t)
		o.KubernetesAPI = apiAuto
		api, err := o.apiServer(quietLog)
		require.NoError(t, err)
		assert.Nil(t, api)
	})
	t.Run("one that doesn't answer", func(t *testing.T) {
		o := testOptions(t)
		server := newAPIServer(t, "node-1", nil)
		o.KubernetesAPI, o.Kubeconfig = apiOn, server.kubeconfig(t)
		server.Close()
		startRuntime(t, o.NRISocket)
		stop, log := o.run(t)
		require.Eventually(t, func() bool { return get(o.HealthAddress, "/readyz").status == 200 }, time.Minute, 5*time.Millisecond, "%v", log)
		require.NoError(t, stop())
	})
}

func TestRegisteredNode(t *testing.T) {
	o := parsed(t, "--mig-strategy=mixed")
	_, known := registeredNode(&offer{})
	assert.False(t, known, "before the GPUs were read")

	s := look("aB")
	s.Taken = time.Unix(1, 0)
	s.Node.GPUs[1].MIG = append(s.Node.GPUs[1].MIG, nvidia.MIGDevice{UUID: "MIG-C", GPU: "GPU-B", Profile: "1g.5gb", MemoryMiB: 100, GPUInstance: 4})
	now := o.offerOf(s, nodeconfig.Settings{}, nil, nil)
	published, _ := registeredNode(now)
	assert.False(t, published.Devices[0].Healthy, "not connected")
	now.Connected = true
	published, known = registeredNode(now)
	require.True(t, known)
	assert.Equal(t, []noderegister.Device{
		{GPU: s.Node.GPUs[0], Replicas: 2, MemoryMiB: 1000, CorePercent: 100, Mode: "hami-core", Healthy: true},
		{GPU: s.Node.GPUs[1], Replicas: 2, MemoryMiB: 200, CorePercent: 100, Mode: "mig", Healthy: true},
	}, published.Devices, "a GPU once, whatever it is cut into")
	assert.Equal(t, nvidia.MIGMixed, published.MIGStrategy)
	assert.Equal(t, node.Device{UUID: "MIG-C", GPU: "GPU-B", Resource: "mig-1g.5gb", MemoryMiB: 100, CorePercent: 100, Replicas: 1},
		o.offerOf(s, nodeconfig.Settings{}, nil, nil).Devices[2])
}
