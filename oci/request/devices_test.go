package request

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
)

const (
	gpu0 = "GPU-00000000-0000-4000-8000-000000000000"
	gpu1 = "GPU-11111111-0000-4000-8000-000000000000"
	gpu2 = "GPU-22222222-0000-4000-8000-000000000000"
	gpu3 = "GPU-33333333-0000-4000-8000-000000000000"
	mig0 = "MIG-00000000-0000-4000-8000-000000000000"
	mig1 = "MIG-11111111-0000-4000-8000-000000000000"
)

func TestParseDevices(t *testing.T) {
	for text, want := range map[string]Devices{
		"1":                         {Count: 1},
		"16":                        {Count: 16},
		"count=2":                   {Count: 2},
		"all":                       {All: true},
		"count=all":                 {All: true},
		"device=all":                {All: true},
		"device=0":                  {Names: []string{"0"}},
		"device=1,0":                {Names: []string{"1", "0"}},
		"0,1":                       {Names: []string{"0", "1"}},
		"0:1":                       {Names: []string{"0:1"}},
		gpu0:                        {Names: []string{gpu0}},
		"device=" + gpu0:            {Names: []string{gpu0}},
		gpu1 + ",0":                 {Names: []string{gpu1, "0"}},
		mig0:                        {Names: []string{mig0}},
		"device=0:0," + gpu2 + ",9": {Names: []string{"0:0", gpu2, "9"}},
	} {
		got, err := ParseDevices(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
		again, err := ParseDevices(got.String())
		require.NoError(t, err, text)
		assert.Equal(t, got, again, text)
	}
}

func TestParseDevicesRefuses(t *testing.T) {
	for text, contains := range map[string]string{
		"":                     "neither a GPU index nor a UUID",
		"0":                    "use device=0",
		"00":                   "use device=0",
		"17":                   "the maximum is 16",
		"99999999999999999999": "the maximum is 16",
		"-1":                   "neither a GPU index nor a UUID",
		"count=":               "is not a number of GPUs",
		"count=x":              "is not a number of GPUs",
		"count=+1":             "is not a number of GPUs",
		"device=":              "neither a GPU index nor a UUID",
		"device=0,0":           "has the GPU 0 twice",
		"device=01":            "neither a GPU index nor a UUID",
		"device=12345":         "neither a GPU index nor a UUID",
		"0,":                   "neither a GPU index nor a UUID",
		",":                    "neither a GPU index nor a UUID",
		"0, 1":                 "neither a GPU index nor a UUID",
		"ALL":                  "neither a GPU index nor a UUID",
		"none":                 "neither a GPU index nor a UUID",
		"gpu0":                 "neither a GPU index nor a UUID",
		"GPU-1234":             "nvidia-smi -L",
		"GPU-AAAAAAAA-0000-4000-8000-000000000000": "nvidia-smi -L",
		gpu0 + "," + gpu0:                          "twice",
		"all,0":                                    "neither a GPU index nor a UUID",
		strings.Repeat("0,", 16) + "0":             "the maximum is 16",
	} {
		_, err := ParseDevices(text)
		require.ErrorIs(t, err, grant.ErrMalformed, text)
		assert.ErrorContains(t, err, contains, text)
		assert.ErrorContains(t, err, quote.Short(text), text)
	}
}

func FuzzParseDevices(f *testing.F) {
	for _, seed := range []string{"1", "all", "device=0,1", gpu0, "0:1", "count=2", "0", ",", "device=" + mig0} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDevices(text)
		if err != nil {
			require.ErrorIs(t, err, grant.ErrMalformed)
			return
		}
		require.False(t, d.IsZero())
		kinds := 0
		for _, is := range []bool{d.Count > 0, d.All, len(d.Names) > 0} {
			if is {
				kinds++
			}
		}
		require.Equal(t, 1, kinds)
		require.LessOrEqual(t, max(d.Count, len(d.Names)), grant.MaxShares)
		again, err := ParseDevices(d.String())
		require.NoError(t, err)
		require.Equal(t, d, again)
	})
}

func TestIsIndex(t *testing.T) {
	for _, name := range []string{"0", "7", "10", "9999", "0:0", "3:12"} {
		require.True(t, isIndex(name), name)
	}
	for _, name := range []string{"", ":", "0:", ":0", "00", "01", "10000", "1:01", "1:2:3", "-1", "+1", " 1", "1\n", "١", "GPU-1"} {
		require.False(t, isIndex(name), name)
	}
}
