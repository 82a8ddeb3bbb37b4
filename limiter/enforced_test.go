package limiter

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A share is charged where the library makes a rate of it: rate_of in src/rate.c.
func TestReaderEnforced(t *testing.T) {
	limit := func(p Policy, hard, soft uint32) DeviceLimit {
		return DeviceLimit{UUID: testGPU, MemoryLimitBytes: 1 << 30, Policy: p, CorePercent: hard, CoreSoftPercent: soft}
	}
	contended := CoreState{Contended: true}
	for _, test := range []struct {
		name  string
		limit DeviceLimit
		state CoreState
		want  bool
	}{
		{"default, not contended", limit(PolicyDefault, 30, 0), CoreState{}, false},
		{"default, contended", limit(PolicyDefault, 30, 0), contended, true},
		{"force, not contended", limit(PolicyForce, 30, 0), CoreState{}, true},
		{"disabled", limit(PolicyDisable, 30, 80), contended, false},
		{"no limit", limit(PolicyForce, 0, 80), contended, false},
		{"the whole GPU", limit(PolicyForce, 100, 0), contended, false},
		{"a soft ceiling, not contended", limit(PolicyDefault, 30, 80), CoreState{}, true},
		{"a soft ceiling of 100, not contended", limit(PolicyForce, 30, 100), CoreState{}, false},
		{"a soft ceiling, contended", limit(PolicyDefault, 30, 100), contended, true},
		{"a soft ceiling, elastic 100", limit(PolicyDefault, 30, 100), CoreState{Contended: true, ElasticPercent: 100}, false},
		{"a soft ceiling below the share", limit(PolicyDefault, 30, 20), CoreState{}, false},
		{"blocked", limit(PolicyDisable, 0, 0), CoreState{Blocked: true}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := claimDir(t)
			path := LimitsPath(dir)
			require.NoError(t, WriteLimits(path, Limits{Devices: []DeviceLimit{test.limit}}))
			require.NoError(t, UpdateCores(dir, []CoreState{test.state}))
			var r Reader
			assert.False(t, r.Enforced(0), "nothing is read yet")
			_, err := r.Cores(path)
			require.NoError(t, err)
			assert.Equal(t, test.want, r.Enforced(0))
			assert.False(t, r.Enforced(1), "the file is of one GPU")
		})
	}
}
