//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// placed is what the scheduler wrote of a pod, by container.
func placed(t *testing.T, p *corev1.Pod) map[string][]grant.Share {
	decoded, err := grant.DecodeGrant(p.Annotations[api.AnnotationGrant])
	require.NoError(t, err)
	return decoded.Containers
}

// uuids are those of shares, in order.
func uuids(shares []grant.Share) []string {
	var all []string
	for _, s := range shares {
		all = append(all, s.UUID)
	}
	slices.Sort(all)
	return all
}

// HAMi's resources, each in the words that its users have for it.
func TestHAMiResources(t *testing.T) {
	s := newSpace(t)
	for _, test := range []struct {
		name string
		ask  resources
		want []int64 // MiB of each GPU
	}{
		{"memory and cores", gpu(3000, 30), []int64{3000}},
		{"memory", resources{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2500"}, []int64{2500}},
		{"memory without a count", resources{"nvidia.com/gpumem": "1500"}, []int64{1500}},
		{"percent", resources{"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "10"}, []int64{gpuMiB / 10}},
		{"two GPUs", resources{"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4000"}, []int64{4000, 4000}},
		{"a whole GPU", resources{"nvidia.com/gpu": "1"}, []int64{gpuMiB}},
		{"all of its cores", resources{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000", "nvidia.com/gpucores": "100"}, []int64{1000}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := s.in(t)
			p := pod("p", container("main", test.ask))
			p.Annotations = map[string]string{"nvidia.com/use-gputype": "H200"}
			p = s.run(p)
			defer s.delete(p.Name)
			shares := placed(t, p)["main"]
			devices := s.devices(p, "main")
			require.Len(t, devices, len(test.want))
			for i, d := range devices {
				require.Equal(t, device{shares[i].UUID, test.want[i]}, d)
			}
			require.Len(t, slices.Compact(uuids(shares)), len(test.want), "distinct GPUs")
			if test.want[0] < gpuMiB {
				s.requireAllocatable(p, "main", devices[0])
			}
		})
	}
}

// withNodeCapacity has the Node list memory and cores for a test.
func withNodeCapacity(t *testing.T) {
	ctx := context.Background()
	t.Cleanup(func() {
		require.NoError(t, cluster.InstallChart(ctx))
		require.NoError(t, cluster.WaitNode(ctx))
	})
	require.NoError(t, cluster.InstallChart(ctx, `--set-json=agent.config.node-capacity=["memory=nvidia.com/gpumem","cores=nvidia.com/gpucores"]`))
	require.NoError(t, cluster.WaitNode(ctx))
	require.NoError(t, harness.Until(ctx, patience, func(ctx context.Context) error {
		node, err := cluster.API.CoreV1().Nodes().Get(ctx, harness.NodeName, metav1.GetOptions{})
		if err == nil && (node.Status.Allocatable.Name("nvidia.com/gpumem", resource.DecimalSI).IsZero() || node.Status.Allocatable.Name("nvidia.com/gpucores", resource.DecimalSI).IsZero()) {
			err = fmt.Errorf("the node offers %v", node.Status.Allocatable)
		}
		return err
	}))
}

// Each container of a pod has its own share, or none.
func TestContainersEachTheirOwn(t *testing.T) {
	if !has(t, kube.InitContainers) {
		withNodeCapacity(t)
	}
	s := newSpace(t)
	first := container("first", gpu(5000, 50))
	first.Command = []string{workload("meminfo")}
	sidecar := container("sidecar", gpu(2000, 10))
	sidecar.RestartPolicy = ref(corev1.ContainerRestartPolicyAlways)
	plainSidecar := container("plain-sidecar", nil)
	plainSidecar.RestartPolicy = ref(corev1.ContainerRestartPolicyAlways)
	second := container("second", gpu(4000, 20))
	second.Command = []string{workload("meminfo")}
	p := pod("p", container("none", nil), container("a", gpu(3000, 30)), container("b", resources{"nvidia.com/gpu": "2", "nvidia.com/gpumem": "1200"}))
	p.Spec.InitContainers = []corev1.Container{first, sidecar, plainSidecar, second}
	p = s.run(p)

	shares := placed(t, p)
	for name, want := range map[string]int64{"first": 5000, "second": 4000} {
		log, err := cluster.Logs(p, name)
		require.NoError(t, err)
		require.Equal(t, []device{{shares[name][0].UUID, want}}, parseDevices(t, log), name)
	}
	s.requireHeld(p, "sidecar", 2000)
	s.requireHeld(p, "a", 3000)
	devices := s.devices(p, "b")
	require.Len(t, devices, 2)
	for _, d := range devices {
		require.Equal(t, int64(1200), d.totalMiB)
	}
	require.Empty(t, s.devices(p, "none"))
	require.Empty(t, s.devices(p, "plain-sidecar"))
}

// Which GPUs a pod's author wants, and which not.
func TestUUIDAndTypeRules(t *testing.T) {
	s := newSpace(t)
	all := gpus(t)
	for _, test := range []struct {
		name        string
		annotations map[string]string
		want        []string // one of these; nil: no node
	}{
		{"this GPU", map[string]string{"nvidia.com/use-gpuuuid": all[5]}, all[5:6]},
		{"one of two", map[string]string{"nvidia.com/use-gpuuuid": all[2] + "," + all[3]}, all[2:4]},
		{"all but two", map[string]string{"nvidia.com/nouse-gpuuuid": all[0] + "," + all[1]}, all[2:]},
		{"this type", map[string]string{"nvidia.com/use-gputype": "A100"}, all[6:]},
		{"not this type", map[string]string{"nvidia.com/nouse-gputype": "H200"}, all[6:]},
		{"a GPU that isn't there", map[string]string{"nvidia.com/use-gpuuuid": "GPU-ffffffff-5151-4000-8000-000000000001"}, nil},
		{"a type that isn't there", map[string]string{"nvidia.com/use-gputype": "H20-unknown"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := s.in(t)
			p := pod("p", container("main", gpu(2000, 10)))
			p.Annotations = test.annotations
			if test.want == nil {
				s.create(p)
				came, _, says := s.cameOf(p.Name)
				require.Equal(t, unscheduled, came)
				require.NotEmpty(t, says)
				s.delete(p.Name)
				return
			}
			p = s.run(p)
			devices := s.devices(p, "main")
			require.Len(t, devices, 1)
			require.Contains(t, test.want, devices[0].uuid)
			require.Equal(t, devices[0].uuid, placed(t, p)["main"][0].UUID)
			s.delete(p.Name)
		})
	}
}

// GPUs that belong together go together, and a pod that insists on it waits rather than
// be given others. The node's are described with the cluster's options.
func TestNUMAAndTopology(t *testing.T) {
	s := newSpace(t)
	all := gpus(t)
	two := resources{"nvidia.com/gpu": "2", "nvidia.com/gpumem": "2000"}
	for _, test := range []struct {
		name        string
		ask         resources
		annotations map[string]string
		one         [][]string // one of these sets; nil: no node
	}{
		{"linked by NVLink", two, map[string]string{"hami.io/gpu-scheduler-policy": "topology-aware"}, [][]string{all[4:6]}},
		{"four of one socket", resources{"nvidia.com/gpu": "4", "nvidia.com/gpumem": "2000"}, map[string]string{"nvidia.com/numa-bind": "true"}, [][]string{all[:4], all[4:]}},
		{"five of one socket", resources{"nvidia.com/gpu": "5", "nvidia.com/gpumem": "2000"}, map[string]string{"nvidia.com/numa-bind": "true"}, nil},
		{"on one switch", two, map[string]string{"hami.io/gpu-scheduler-policy": "topology-aware", "nvidia.com/nouse-gpuuuid": all[0] + "," + all[4]}, [][]string{all[2:4], all[6:]}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := s.in(t)
			p := pod("p", container("main", test.ask))
			p.Annotations = test.annotations
			if test.one == nil {
				s.create(p)
				came, _, says := s.cameOf(p.Name)
				require.Equal(t, unscheduled, came, says)
				s.delete(p.Name)
				return
			}
			p = s.run(p)
			require.Contains(t, test.one, uuids(placed(t, p)["main"]))
			require.Len(t, s.devices(p, "main"), len(test.one[0]))
			s.delete(p.Name)
		})
	}
}

// gpu-manager's resources: hundredths of a GPU and blocks of 256 MiB, or whole GPUs.
func TestGPUManagerResources(t *testing.T) {
	withAgent(t, "tencent.com/vcuda-core", 800, "--resource-profile=tencent")
	s := newSpace(t)
	for _, test := range []struct {
		name          string
		cores, memory string
		want          []int64 // MiB of each GPU
	}{
		{"a part of a GPU", "30", "10", []int64{2560}},
		{"a GPU", "100", "", []int64{gpuMiB}},
		{"two GPUs", "200", "", []int64{gpuMiB, gpuMiB}},
		{"two GPUs, whatever memory", "200", "41", []int64{gpuMiB, gpuMiB}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := s.in(t)
			ask := resources{"tencent.com/vcuda-core": test.cores}
			if test.memory != "" {
				ask["tencent.com/vcuda-memory"] = test.memory
			}
			p := pod("p", container("main", ask))
			p.Annotations = map[string]string{"nvidia.com/use-gputype": "H200"}
			p = s.run(p)
			defer s.delete(p.Name)
			devices := s.devices(p, "main")
			require.Len(t, devices, len(test.want))
			shares := placed(t, p)["main"]
			for i, d := range devices {
				require.Equal(t, device{shares[i].UUID, test.want[i]}, d)
			}
			if test.want[0] < gpuMiB {
				s.requireAllocatable(p, "main", devices[0])
			}
		})
	}
}
