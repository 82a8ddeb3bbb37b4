package nodeconfig_test

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/agent/nodeconfig"
)

const uuid = "GPU-00000001-5151-4000-8000-000000000001"

// hamis is what HAMi's chart renders.
const hamis = `{"nodeconfig": [{"name": "node-1", "operatingmode": "hami-core", "migstrategy": "none", "devicememoryscaling": 1.8, "devicecorescaling": 1,
	"devicesplitcount": 10, "preconfigureddevicememory": 16384, "libcudaloglevel": "3", "enablenumatopology": true,
	"filterdevices": {"uuid": ["` + uuid + `"], "index": [0, 3]}, "enablegetpreferredallocation": false}]}`

func pointer[T any](v T) *T { return &v }

func TestDecodeHAMis(t *testing.T) {
	f, err := nodeconfig.Decode([]byte(hamis))
	require.NoError(t, err)
	got, err := nodeconfig.Resolve(f, "node-1", nil)
	require.NoError(t, err)
	assert.Equal(t, nodeconfig.Settings{
		OperatingMode: "hami-core", MIGStrategy: "none", MemoryScaling: pointer(1.8), CoresScaling: pointer(1.0), SplitCount: pointer(10),
		MemoryMiB: pointer(int64(16384)), LogLevel: pointer(json.Number("3")), NUMATopology: pointer(true), PreferredAllocation: pointer(false),
		Excluded: nodeconfig.Filter{UUIDs: []string{uuid}, Indices: []int{0, 3}},
	}, got)
	assert.True(t, got.Excludes(strings.ToLower(uuid), 9), "by its UUID, in any case")
	assert.True(t, got.Excludes("GPU-x", 3), "by its index")
	assert.False(t, got.Excludes("GPU-x", 1))

	got, err = nodeconfig.Resolve(f, "node-2", nil)
	require.NoError(t, err)
	assert.Zero(t, got, "HAMi matches names exactly")
}

// hamisDefault is the entry in HAMi's values.yaml (devicePlugin.nodeConfiguration.config).
const hamisDefault = `{"nodeconfig": [{"name": "your-node-name", "operatingmode": "hami-core", "devicememoryscaling": 1, "devicesplitcount": 10,
	"preconfigureddevicememory": 0, "enablenumatopology": false, "migstrategy": "none", "filterdevices": {"uuid": [], "index": []},
	"enablegetpreferredallocation": false}]}`

func TestDecodeHAMisDefault(t *testing.T) {
	f, err := nodeconfig.Decode([]byte(hamisDefault))
	require.NoError(t, err)
	got, err := nodeconfig.Resolve(f, "your-node-name", nil)
	require.NoError(t, err)
	assert.Equal(t, pointer(10), got.SplitCount)
	assert.Equal(t, pointer(int64(0)), got.MemoryMiB, "the driver's")
}

func TestDecodeErrors(t *testing.T) {
	one := func(fields string) string { return `{"nodeconfig": [{"name": "a"}, {"name": "n", ` + fields + `}]}` }
	for _, test := range []struct {
		description, file string
		want              []string
	}{
		{"empty", "", []string{"byte 0", "unexpected end"}},
		{"not JSON", "nodeconfig:\n", []string{"byte 2", "invalid character"}},
		{"cut off", `{"nodeconfig": [`, []string{"unexpected end"}},
		{"two values", `{"nodeconfig": []} {}`, []string{"byte 20", "after top-level value"}},
		{"null", "null", []string{`must be {"nodeconfig": [...]}`}},
		{"a list", "[]", []string{"the file: must be an object, not array"}},
		{"no list", `{"nodeconfig": {}}`, []string{"nodeconfig: must be a list, not object"}},
		{"nested for ever", strings.Repeat("[", 20000), []string{"exceeded max depth"}},
		{"too big", strings.Repeat(" ", 1<<20) + "{}", []string{"more than 1048576 bytes"}},
		{"an unknown list", `{"nodeconfigs": []}`, []string{`unknown field "nodeconfigs"`}},
		{"an unknown field", one(`"devicesplit": 3`), []string{"nodeconfig[1]", `unknown field "devicesplit"`}},
		{"an unknown field within", one(`"filterdevices": {"uuids": []}`), []string{"nodeconfig[1]", `unknown field "filterdevices.uuids"`}},
		{"a field twice", one(`"devicesplitcount": 3, "devicesplitcount": 4`), []string{"nodeconfig[1]", `duplicate field "devicesplitcount"`}},
		{"a label twice", one(`"matchlabels": {"a": "b", "a": "c"}`), []string{"nodeconfig[1]", `duplicate field "matchlabels.a"`}},
		{"a field in another case", one(`"devicesplitcount": 3, "DeviceSplitCount": 4`), []string{"nodeconfig[1]", `unknown field "DeviceSplitCount"`}},
		{"a wrong type", one(`"devicesplitcount": "3"`), []string{"nodeconfig[1]: devicesplitcount: must be a whole number, not string"}},
		{"the list twice", `{"nodeconfig": [], "nodeconfig": []}`, []string{`duplicate field "nodeconfig"`}},
		{"a text for a switch", one(`"enablenumatopology": "yes"`), []string{"]: enablenumatopology: must be true or false, not string"}},
		{"a text for a number", one(`"devicecorescaling": "1"`), []string{"]: devicecorescaling: must be a number, not string"}},
		{"a number for a text", one(`"migstrategy": 1`), []string{"]: migstrategy: must be a text, not number"}},
		{"a fraction", one(`"devicesplitcount": 2.5`), []string{"nodeconfig[1]", "devicesplitcount", "2.5"}},
		{"no node", `{"nodeconfig": [{"devicesplitcount": 3}]}`, []string{"nodeconfig[0]: matches no node"}},
		{"one node twice", `{"nodeconfig": [{"name": "a"}, {"name": "a"}]}`, []string{"nodeconfig[1] (name a): matches the same nodes as nodeconfig[0]"}},
		{"a name and a glob", one(`"nameglob": "g"`), []string{"nameglob: must be empty if name is set"}},
		{"a name and labels", one(`"matchlabels": {"a": "b"}`), []string{"matchlabels: must be empty if name is set"}},
		{"a bad name", `{"nodeconfig": [{"name": "Node_1"}]}`, []string{`name: must be a node's name, not "Node_1"`}},
		{"a bad glob", `{"nodeconfig": [{"nameglob": "gpu-["}]}`, []string{`nameglob: must be a pattern of node names such as gpu-*, not "gpu-["`}},
		{"a bad label", `{"nodeconfig": [{"matchlabels": {"a b": "c"}}]}`, []string{`matchlabels: must be the key of a label, not "a b"`}},
		{"a bad label's value", `{"nodeconfig": [{"matchlabels": {"a": "b c"}}]}`, []string{`matchlabels.a: must be a label's value, not "b c"`}},
		{"a bad mode", one(`"operatingmode": "vgpu"`), []string{`nodeconfig[1] (name n): operatingmode: must be hami-core, mig or mps, not "vgpu"`}},
		{"a bad strategy", one(`"migstrategy": "all"`), []string{`migstrategy: must be none, single or mixed, not "all"`}},
		{"no memory", one(`"devicememoryscaling": 0`), []string{`devicememoryscaling: must be 0.01 to 100, not "0"`}},
		{"negative cores", one(`"devicecorescaling": -1`), []string{`devicecorescaling: must be 0.01 to 100, not "-1"`}},
		{"huge", one(`"devicememoryscaling": 1e300`), []string{"devicememoryscaling: must be 0.01 to 100"}},
		{"infinite", one(`"devicememoryscaling": 1e999`), []string{"devicememoryscaling", "1e999"}},
		{"not a number", one(`"devicememoryscaling": NaN`), []string{"invalid character 'N'"}},
		{"no containers", one(`"devicesplitcount": 0`), []string{`devicesplitcount: must be 1 to 1000, not "0"`}},
		{"too many containers", one(`"devicesplitcount": 1001`), []string{`devicesplitcount: must be 1 to 1000, not "1001"`}},
		{"negative memory", one(`"preconfigureddevicememory": -1`), []string{"preconfigureddevicememory: must be 0 to 16777216 MiB"}},
		{"a bad log level", one(`"libcudaloglevel": "5"`), []string{`libcudaloglevel: must be 0 to 4, not "5"`}},
		{"a log level in words", one(`"libcudaloglevel": "info"`), []string{"nodeconfig[1]", "info"}},
		{"a bad UUID", one(`"filterdevices": {"uuid": ["` + uuid + `", "GPU-1"]}`), []string{`filterdevices.uuid[1]: must be a GPU's UUID, as nvidia-smi -L prints it, not "GPU-1"`}},
		{"a UUID twice", one(`"filterdevices": {"uuid": ["` + uuid + `", "` + uuid + `"]}`), []string{"filterdevices.uuid[1]: must be a list without duplicates"}},
		{"a negative index", one(`"filterdevices": {"index": [-1]}`), []string{`filterdevices.index[0]: must be 0 to 1023, not "-1"`}},
		{"an index twice", one(`"filterdevices": {"index": [1, 1]}`), []string{"filterdevices.index[1]: must be a list without duplicates"}},
		{"everything at once", `{"nodeconfig": [{"name": "a", "devicesplitcount": 0, "migstrategy": "x"}, {"name": "b", "x": 1}]}`,
			[]string{"nodeconfig[0] (name a): migstrategy", "nodeconfig[0] (name a): devicesplitcount", "nodeconfig[1]: unknown field"}},
	} {
		t.Run(test.description, func(t *testing.T) {
			_, err := nodeconfig.Decode([]byte(test.file))
			require.Error(t, err)
			for _, want := range test.want {
				assert.ErrorContains(t, err, want)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	decode := func(entries ...string) nodeconfig.File {
		f, err := nodeconfig.Decode([]byte(`{"nodeconfig": [` + strings.Join(entries, ",") + `]}`))
		require.NoError(t, err)
		return f
	}
	const (
		all   = `{"nameglob": "*", "devicesplitcount": 1}`
		gpu   = `{"nameglob": "gpu-*", "devicesplitcount": 2}`
		gpu7  = `{"name": "gpu-7", "devicesplitcount": 3}`
		infer = `{"matchlabels": {"pool": "infer"}, "devicesplitcount": 4}`
		both  = `{"nameglob": "gpu-*", "matchlabels": {"pool": "infer"}, "devicesplitcount": 5}`
		two   = `{"matchlabels": {"pool": "infer", "zone": "a"}, "devicesplitcount": 6}`
		other = `{"matchlabels": {"zone": "a"}, "devicesplitcount": 7}`
	)
	for _, test := range []struct {
		description string
		file        nodeconfig.File
		node        string
		labels      map[string]string
		want        int // its split count; 0: nothing is set
	}{
		{"an empty file", decode(), "gpu-7", nil, 0},
		{"a name over all", decode(all, gpu, gpu7, infer, both), "gpu-7", map[string]string{"pool": "infer"}, 3},
		{"a longer glob over a shorter one", decode(all, gpu), "gpu-8", nil, 2},
		{"in any order", decode(gpu, all), "gpu-8", nil, 2},
		{"the rest", decode(gpu, all), "cpu-1", nil, 1},
		{"labels beside a glob", decode(gpu, both), "gpu-8", map[string]string{"pool": "infer"}, 5},
		{"a glob over labels", decode(two, gpu), "gpu-8", map[string]string{"pool": "infer", "zone": "a"}, 2},
		{"more labels over fewer", decode(infer, two), "gpu-8", map[string]string{"pool": "infer", "zone": "a"}, 6},
		{"another label's value", decode(infer), "gpu-8", map[string]string{"pool": "train"}, 0},
		{"no such label", decode(infer), "gpu-8", nil, 0},
		{"equal ones, of which the node matches one", decode(infer, other), "gpu-8", map[string]string{"zone": "a"}, 7},
		{"equal ones below a better one", decode(infer, other, two), "gpu-8", map[string]string{"pool": "infer", "zone": "a"}, 6},
	} {
		t.Run(test.description, func(t *testing.T) {
			s, err := nodeconfig.Resolve(test.file, test.node, test.labels)
			require.NoError(t, err)
			if test.want == 0 {
				assert.Zero(t, s)
				return
			}
			require.NotNil(t, s.SplitCount)
			assert.Equal(t, test.want, *s.SplitCount)
		})
	}
	_, err := nodeconfig.Resolve(decode(infer, other), "gpu-8", map[string]string{"pool": "infer", "zone": "a"})
	assert.EqualError(t, err, "node gpu-8: the entries (label pool=infer) and (label zone=a) match it equally: make one of them more specific")
}

// The example is good, and the schema has the fields that the decoder knows.
func TestInstalledFiles(t *testing.T) {
	data, err := os.ReadFile("../../install/nodeconfig.example.json")
	require.NoError(t, err)
	f, err := nodeconfig.Decode(data)
	require.NoError(t, err)
	s, err := nodeconfig.Resolve(f, "gpu-7", nil)
	require.NoError(t, err)
	assert.Equal(t, []int{0}, s.Excluded.Indices)

	data, err = os.ReadFile("../../install/nodeconfig.schema.json")
	require.NoError(t, err)
	type object struct {
		Properties map[string]struct {
			Description string `json:"description"`
			Properties  map[string]any
		} `json:"properties"`
	}
	var schema struct {
		Definitions struct {
			Entry object `json:"entry"`
		} `json:"$defs"`
	}
	require.NoError(t, json.Unmarshal(data, &schema))
	fields := slices.Sorted(maps.Keys(schema.Definitions.Entry.Properties))
	assert.Equal(t, nodeconfig.Fields(), fields)
	for field, p := range schema.Definitions.Entry.Properties {
		assert.NotEmpty(t, p.Description, field)
	}
}

// Whatever the file, the decoder ends, and what it lets through is in range.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(hamis))
	f.Add([]byte(`{"nodeconfig": [{"nameglob": "[a-c]*?", "matchlabels": {"a": ""}, "libcudaloglevel": 4}]}`))
	f.Add([]byte(`{"nodeconfig": [{"name": "a", "devicememoryscaling": 1e999, "filterdevices": null}, null]}`))
	f.Add([]byte(`{"a": {"a": [[{}]], "A": 1}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := nodeconfig.Decode(data)
		if err != nil {
			assert.NotEmpty(t, err.Error())
			return
		}
		s, err := nodeconfig.Resolve(file, "node-1", map[string]string{"a": ""})
		if err != nil {
			assert.ErrorContains(t, err, "match it equally")
			return
		}
		for _, x := range []*float64{s.MemoryScaling, s.CoresScaling} {
			assert.True(t, x == nil || *x >= 0.01 && *x <= 100)
		}
		assert.True(t, s.SplitCount == nil || *s.SplitCount >= 1 && *s.SplitCount <= 1000)
		assert.True(t, s.MemoryMiB == nil || *s.MemoryMiB >= 0)
		assert.True(t, s.LogLevel == nil || slices.Contains([]json.Number{"0", "1", "2", "3", "4"}, *s.LogLevel))
		for _, i := range s.Excluded.Indices {
			assert.True(t, s.Excludes("", i))
		}
	})
}
