package size

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Size{
		"8GiB": {MiB: 8192}, "8gib": {MiB: 8192}, "8GB": {MiB: 8192}, "8gb": {MiB: 8192}, "8G": {MiB: 8192}, "8g": {MiB: 8192}, "8Gi": {MiB: 8192},
		"8 GiB": {MiB: 8192}, "8192MiB": {MiB: 8192}, "8000m": {MiB: 8000}, "8000Mi": {MiB: 8000}, "8388608k": {MiB: 8192}, "8388608KiB": {MiB: 8192},
		"1t": {MiB: 1 << 20}, "16TiB": {MiB: grant.MaxMemoryMiB}, "1m": {MiB: 1}, "1024k": {MiB: 1}, "2047k": {MiB: 1},
		"1.5GiB": {MiB: 1536}, "0.5g": {MiB: 512}, "1.000001g": {MiB: 1024}, "15.999999t": {MiB: 16777214},
		"25%": {Percent: 25}, "1%": {Percent: 1}, "100%": {Percent: 100}, "25 %": {Percent: 25},
	} {
		got, err := Parse(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, contains := range map[string]string{
		"":                           "is not a size",
		"8000":                       "has no unit",
		"0":                          "has no unit",
		"0g":                         "less than 1 MiB",
		"1k":                         "less than 1 MiB",
		"0.000001m":                  "less than 1 MiB",
		"-1g":                        "is not a size",
		"+1g":                        "is not a size",
		"08g":                        "is not a size", // C reads an octal number
		"0x10g":                      "is not a size",
		"1e3m":                       "is not a size",
		"8 000m":                     "is not a size",
		"8,5g":                       "is not a size",
		"1.g":                        "is not a size",
		".5g":                        "is not a size",
		"1.2.3g":                     "is not a size",
		"1.1234567g":                 "is not a size",
		"8  GiB":                     "is not a size",
		" 8GiB":                      "is not a size",
		"8GiB ":                      "is not a size",
		"8b":                         "is not a size",
		"8ib":                        "is not a size",
		"8gbb":                       "is not a size",
		"8e":                         "is not a size",
		"8GiBs":                      "is not a size",
		"g":                          "is not a size",
		"%":                          "1% to 100%",
		"0%":                         "1% to 100%",
		"101%":                       "1% to 100%",
		"12.5%":                      "1% to 100%",
		"-5%":                        "is not a size",
		"16777217m":                  "too large",
		"16.000001t":                 "too large",
		"17t":                        "too large",
		"9223372036854775807t":       "too large",
		"99999999999999999999999g":   "too large",
		"99999999999999999999999%":   "1% to 100%",
		"18446744073709551616k":      "too large",
		"٨g":                         "is not a size", // digits that aren't ASCII
		"all":                        "is not a size",
		"8g\x00":                     "is not a size",
		string(make([]byte, 100000)): "(100000 bytes)",
	} {
		_, err := Parse(text)
		require.ErrorIs(t, err, grant.ErrMalformed, "%.40q", text)
		assert.ErrorContains(t, err, contains, "%.40q", text)
		assert.Less(t, len(err.Error()), 600)
	}
}

// HAMi-core reads a number without a unit as bytes.
func TestParseHAMi(t *testing.T) {
	for text, want := range map[string]Size{
		"4294967296": {MiB: 4096}, "1048576": {MiB: 1}, "4096m": {MiB: 4096}, "4g": {MiB: 4096}, "50%": {Percent: 50},
	} {
		got, err := ParseHAMi(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for text, contains := range map[string]string{
		"8000": "in bytes as in HAMi", "0": "in bytes as in HAMi", "0m": "less than 1 MiB", "1.5": "not a size",
		"18446744073709551616": "too large", "17592186044417": "too large", "010000000": "not a size",
	} {
		_, err := ParseHAMi(text)
		assert.ErrorContains(t, err, contains, text)
		assert.ErrorContains(t, err, text)
	}
}

func TestSizeOf(t *testing.T) {
	gpu := grant.GPU{MemoryMiB: 81559}
	assert.Equal(t, int64(8192), Size{MiB: 8192}.Of(gpu))
	assert.Equal(t, int64(20389), Size{Percent: 25}.Of(gpu), "rounded down")
	assert.Equal(t, int64(81559), Size{Percent: 100}.Of(gpu))
	assert.Equal(t, int64(1), Size{Percent: 1}.Of(grant.GPU{MemoryMiB: 5}), "a limit of nothing would be none")
	assert.Equal(t, int64(grant.MaxMemoryMiB/2), Size{Percent: 50}.Of(grant.GPU{MemoryMiB: grant.MaxMemoryMiB}))
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"8GiB", "8000m", "1.5g", "25%", "0", "16TiB", "9223372036854775807t", "1.999999t", "8 k", "010m"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		plain, err := Parse(text)
		if err != nil {
			require.ErrorIs(t, err, grant.ErrMalformed)
			return
		}
		require.True(t, 1 <= plain.MiB && plain.MiB <= grant.MaxMemoryMiB && plain.Percent == 0 ||
			1 <= plain.Percent && plain.Percent <= 100 && plain.MiB == 0, "%q: %+v", text, plain)
		again, err := Parse(plain.String())
		require.NoError(t, err)
		require.Equal(t, plain, again, "what is written is read back")
		hami, err := ParseHAMi(text)
		require.NoError(t, err)
		require.Equal(t, plain, hami, "with a unit both read the same")
	})
}
