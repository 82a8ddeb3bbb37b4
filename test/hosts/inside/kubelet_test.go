//go:build hosts

package inside_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// kubeletDir is where the kubelet has its sockets, whatever its --root-dir.
const kubeletDir = "/var/lib/kubelet"

// kubeletAPI is the kubelet's read-only port.
const kubeletAPI = "http://127.0.0.1:10255"

// A kubelet with systemd's cgroups gives a pod a device of the device plugin, the pod's annotation grants it a share, and
// the share ends with the pod. The kubelet has no API server: the pod is a file in its directory.
func TestKubeletWithSystemd(t *testing.T) {
	ctx := context.Background()
	n, err := harness.NewNode(ctx, harness.NodeOptions{AgentArgs: []string{
		"--device-plugin-dir=" + kubeletDir + "/device-plugins", "--pod-resources-socket=" + kubeletDir + "/pod-resources/kubelet.sock",
		"--audit-interval=1s",
	}})
	t.Cleanup(func() {
		if t.Failed() && n.Agent != nil {
			t.Logf("the agent's log:\n%s", n.Agent.LogTail(40))
		}
		require.NoError(t, n.Close(ctx))
	})
	require.NoError(t, err)
	pods := filepath.Join(n.Dir, "pods")
	startKubelet(t, n, pods)

	status, err := n.Machine.Status(ctx)
	require.NoError(t, err)
	manifest := filepath.Join(pods, "train.json")
	require.NoError(t, os.WriteFile(manifest, pod(t, status.GPUs[0].UUID), 0o644))
	var id string
	until(t, func(ctx context.Context) error {
		status, err := n.Machine.Status(ctx)
		if err != nil || len(status.Containers) == 0 || status.Containers[0].Shares[0].Processes == 0 {
			return errors.Join(fmt.Errorf("no container with a share and a process: %v", status.Containers), kubeletPods(ctx), err)
		}
		id = status.Containers[0].ContainerID
		return nil
	})
	status, err = n.Machine.Status(ctx)
	require.NoError(t, err)
	require.Contains(t, status.Containers[0].Pod, "train-"+harness.NodeName, "the kubelet's name of the pod")
	require.Equal(t, int64(3000), status.Containers[0].Shares[0].MemoryMiB)
	holds("a pod of the kubelet has its share")

	spec, err := n.Spec(ctx, id)
	require.NoError(t, err)
	require.Regexp(t, `^kubepods-besteffort-pod\w+\.slice:cri-containerd:`+id+`$`, spec.Linux.CgroupsPath)
	holds("its control group is systemd's: %s", spec.Linux.CgroupsPath)

	sees := exec(t, n, id, "meminfo", 0)
	require.Equal(t, fmt.Sprint(3000<<20), sees["device.0.total_bytes"])
	require.Equal(t, fmt.Sprint(3000<<20), sees["nvml.0.total_bytes"])
	holds("it sees its limit by CUDA and NVML")
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", exec(t, n, id, "alloc", 0)["result"])
	holds("it gets no memory beyond it")
	require.NotContains(t, n.Agent.LogTail(2000), "violation found")
	holds("the audit finds its process by the control group, and no violation")

	require.NoError(t, os.Remove(manifest))
	until(t, func(ctx context.Context) error {
		status, err := n.Machine.Status(ctx)
		if err == nil && (len(status.Containers) > 0 || status.GPUs[0].GrantedMemoryMiB > 0) {
			err = fmt.Errorf("the share is left: %v", status.Containers)
		}
		return err
	})
	holds("the share ends with the pod")
}

// startKubelet starts a kubelet, and waits until the device plugin has registered with it.
func startKubelet(t *testing.T, n *harness.Node, pods string) {
	program, err := kube.Tool("kubelet")
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(pods, 0o755))
	resolv := filepath.Join(n.Dir, "resolv.conf")
	require.NoError(t, os.WriteFile(resolv, nil, 0o644))
	config, err := json.Marshal(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": "127.0.0.1", "healthzBindAddress": "127.0.0.1", "readOnlyPort": 10255,
		"authentication":           map[string]any{"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false}},
		"authorization":            map[string]any{"mode": "AlwaysAllow"},
		"containerRuntimeEndpoint": "unix://" + n.Socket(), "cgroupDriver": "systemd", "staticPodPath": pods, "fileCheckFrequency": "1s",
		"failSwapOn": false, "resolvConf": resolv, "makeIPTablesUtilChains": false, "localStorageCapacityIsolation": false,
		"volumePluginDir": filepath.Join(n.Dir, "volume-plugins"),
		// No image could be pulled again, and nothing is evicted.
		"imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
		"evictionHard":          map[string]any{"memory.available": "10Mi", "nodefs.available": "0.1%", "nodefs.inodesFree": "0.1%", "imagefs.available": "0.1%", "imagefs.inodesFree": "0.1%"},
		"runtimeRequestTimeout": "20m", // an emulated machine
	})
	require.NoError(t, err)
	file := filepath.Join(n.Dir, "kubelet.json")
	require.NoError(t, os.WriteFile(file, config, 0o644))
	kubelet, err := harness.StartProcess(n.Dir, "kubelet", nil, program, "--config="+file, "--hostname-override="+harness.NodeName)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the kubelet's log:\n%s", kubelet.LogTail(60))
		}
		require.NoError(t, kubelet.Stop(20*time.Second))
	})
	until(t, func(context.Context) error {
		select {
		case <-kubelet.Exited():
			t.Fatal("the kubelet exited")
		default:
		}
		state, err := os.ReadFile(kubeletDir + "/device-plugins/kubelet_internal_checkpoint")
		if err != nil {
			return err
		}
		var checkpoint struct {
			Data struct{ RegisteredDevices map[string][]string }
		}
		if err := json.Unmarshal(state, &checkpoint); err != nil {
			return err
		}
		if len(checkpoint.Data.RegisteredDevices["nvidia.com/gpu"]) == 0 {
			return errors.New("the device plugin is not registered")
		}
		return nil
	})
}

// pod is a pod with a share of a GPU. It has the machine's network, which needs no CNI.
func pod(t *testing.T, gpu string) []byte {
	grant, err := json.Marshal(map[string]any{"version": 1, "node": harness.NodeName, "containers": map[string]any{
		"main": []any{map[string]any{"uuid": gpu, "memoryMiB": 3000, "cores": 30}},
	}})
	require.NoError(t, err)
	data, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": "train", "namespace": "default", "annotations": map[string]string{"gpuslice.io/grant": string(grant)}},
		"spec": map[string]any{"hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": []any{map[string]any{
			"name": "main", "image": harness.WorkloadImage, "imagePullPolicy": "Never",
			"command":   []string{harness.WorkloadDir + "/hold", "--mib=100"},
			"resources": map[string]any{"limits": map[string]any{"nvidia.com/gpu": "1"}},
		}}},
	})
	require.NoError(t, err)
	return data
}

// kubeletPods returns what the kubelet reports of its pods, as an error.
func kubeletPods(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, kubeletAPI+"/pods", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return errors.Join(fmt.Errorf("the kubelet's pods: %.2000s", text), err)
}

// exec runs a workload in a container of CRI, and returns the key=value lines.
func exec(t *testing.T, n *harness.Node, id, workload string, status int) map[string]string {
	r, err := n.CRI.ExecSync(context.Background(), &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{harness.WorkloadDir + "/" + workload}, Timeout: 1200})
	require.NoError(t, err)
	require.Equal(t, status, int(r.ExitCode), "%s: %s%s", workload, r.Stdout, r.Stderr)
	return harness.KeyValues(string(r.Stdout))
}

// holds prints an expectation that holds, as the demo does.
func holds(format string, args ...any) { fmt.Printf("  ok   "+format+"\n", args...) }

func until(t *testing.T, probe func(context.Context) error) {
	t.Helper()
	require.NoError(t, harness.Until(context.Background(), time.Minute, probe))
}
