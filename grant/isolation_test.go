package grant

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
)

func TestRequestedIsolation(t *testing.T) {
	for _, test := range []struct {
		ours, mode string // "-": absent
		want       Isolation
		wrong      bool
	}{
		{ours: "-", mode: "-"},
		{ours: "any", mode: "-"},
		{ours: "limiter", mode: "-", want: IsolationLimiter},
		{ours: "driver", mode: "hami-core", want: IsolationDriver},
		{ours: "hardware", mode: "hami-core", want: IsolationHardware},
		{ours: "-", mode: "mig", want: IsolationHardware},
		{ours: "any", mode: " mig ,", want: IsolationHardware},
		{ours: "limiter", mode: "mig,mig", want: IsolationHardware},
		{ours: "driver", mode: "mig,hami-core", want: IsolationDriver},
		{ours: "-", mode: "migx"},
		{ours: "-", mode: ""},
		{ours: "", mode: "mig", wrong: true},
		{ours: "HARDWARE", mode: "-", wrong: true},
		{ours: "hardware ", mode: "-", wrong: true},
		{ours: "native", mode: "-", wrong: true},
	} {
		annotations := map[string]string{}
		if test.ours != "-" {
			annotations[api.AnnotationIsolation] = test.ours
		}
		if test.mode != "-" {
			annotations[api.AnnotationMode] = test.mode
		}
		got, err := RequestedIsolation(annotations)
		if test.wrong {
			require.ErrorIs(t, err, ErrMalformed, annotations)
			require.ErrorContains(t, err, "annotation gpuslice.io/isolation: ")
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, test.want, got, "%v", annotations)
	}
}

func TestIsolationCheck(t *testing.T) {
	const gpu, mig = "GPU-0a000000-1111-2222-3333-444455556666", "MIG-0a000000-1111-2222-3333-444455556666"
	gpus := map[string]GPU{gpu: {UUID: gpu, MemoryMiB: 10_000}, mig: {UUID: mig, MemoryMiB: 1_000}}
	part, whole, device := Share{UUID: gpu, MemoryMiB: 9_999}, Share{UUID: gpu, MemoryMiB: 10_000}, Share{UUID: mig, MemoryMiB: 1_000}
	gone := Share{UUID: "GPU-1a000000-1111-2222-3333-444455556666", MemoryMiB: 10_000}
	for _, test := range []struct {
		description string
		shares      []Share
		limited     Isolation
		has         Isolation // the strongest that it has
	}{
		{"a part", []Share{part}, IsolationLimiter, IsolationLimiter},
		{"a part, limited by the driver", []Share{part}, IsolationDriver, IsolationDriver},
		{"a part, without a limiter", []Share{part}, IsolationAny, IsolationAny},
		{"a whole GPU, whatever limits it", []Share{whole}, IsolationAny, IsolationHardware},
		{"a MIG device", []Share{device}, IsolationLimiter, IsolationHardware},
		{"a part beside a whole GPU", []Share{device, part}, IsolationLimiter, IsolationLimiter},
		{"a GPU that is gone", []Share{gone}, IsolationLimiter, IsolationLimiter},
		{"none", nil, IsolationLimiter, IsolationLimiter},
	} {
		for wanted := IsolationAny; wanted <= IsolationHardware; wanted++ {
			err := wanted.Check(test.shares, gpus, test.limited)
			if wanted <= test.has {
				assert.NoError(t, err, "%s: %s", test.description, wanted)
				continue
			}
			require.ErrorIs(t, err, ErrIsolation, "%s: %s", test.description, wanted)
			assert.ErrorContains(t, err, "the isolation "+wanted.String()+" is requested (annotation gpuslice.io/isolation), and ")
		}
	}
}

// What an author writes is one of the four values, or an error.
func FuzzRequestedIsolation(f *testing.F) {
	f.Add("driver", "mig")
	f.Add("", "hami-core,mig")
	f.Fuzz(func(t *testing.T, ours, mode string) {
		got, err := RequestedIsolation(map[string]string{api.AnnotationIsolation: ours, api.AnnotationMode: mode})
		wanted, parseErr := ParseIsolation(ours)
		require.Equal(t, parseErr == nil, err == nil)
		if err == nil {
			require.Equal(t, ours, wanted.String())
			require.GreaterOrEqual(t, got, wanted)
		}
	})
}
