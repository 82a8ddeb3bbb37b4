package scheduler

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
)

func TestUses(t *testing.T) {
	const a, b = "GPU-a", "GPU-b"
	share := func(uuid string, mib int64, cores int) []grant.Share {
		return []grant.Share{{UUID: uuid, MemoryMiB: mib, CorePercent: cores}}
	}
	for _, tc := range []struct {
		name   string
		kinds  []Kind
		shares [][]grant.Share
		want   map[string]Use
	}{
		{"nothing", []Kind{App, App}, [][]grant.Share{nil, nil}, map[string]Use{}},
		{"containers run together", []Kind{App, App}, [][]grant.Share{share(a, 1000, 10), share(a, 2000, 20)},
			map[string]Use{a: {3000, 30, 2}}},
		{"an init container runs before them", []Kind{Init, App}, [][]grant.Share{share(a, 5000, 10), share(a, 2000, 20)},
			map[string]Use{a: {5000, 20, 1}}},
		{"init containers run one after the other", []Kind{Init, Init}, [][]grant.Share{share(a, 1000, 10), share(a, 2000, 0)},
			map[string]Use{a: {2000, 10, 1}}},
		{"a sidecar runs beside the init containers after it, and the others",
			[]Kind{Init, Sidecar, Init, App}, [][]grant.Share{share(a, 3000, 0), share(a, 1000, 5), share(a, 2500, 0), share(a, 2000, 0)},
			map[string]Use{a: {3500, 5, 2}}},
		{"each GPU by itself", []Kind{Init, App}, [][]grant.Share{share(a, 1000, 10), share(b, 2000, 20)},
			map[string]Use{a: {1000, 10, 1}, b: {2000, 20, 1}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			containers := make([]Container, len(tc.kinds))
			for i, k := range tc.kinds {
				containers[i].Kind = k
			}
			require.Equal(t, tc.want, Uses(containers, tc.shares))
		})
	}
}
