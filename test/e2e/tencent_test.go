//go:build e2e

package e2e_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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
		{"two GPUs, with memory", "200", "40", []int64{5120, 5120}},
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
