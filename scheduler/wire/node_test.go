package wire

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
)

const (
	gpuA = "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec"
	gpuB = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
	gpuC = "GPU-11111111-5c87-89ac-b1a6-7b53aa24b0ec"
)

func node(annotations ...string) *scheduler.Node {
	n := &scheduler.Node{Name: "node-1", Annotations: map[string]string{}}
	for i := 0; i < len(annotations); i += 2 {
		n.Annotations[annotations[i]] = annotations[i+1]
	}
	return n
}

// v100 is a GPU of the examples in HAMi's description of the protocol.
func v100(uuid string, index, numa int) scheduler.GPU {
	return scheduler.GPU{
		UUID: uuid, Model: "NVIDIA-Tesla V100-PCIE-32GB", Index: index, NUMA: numa, MemoryMiB: 32768, Cores: 100, Replicas: 10, Mode: "hami-core", Healthy: true,
	}
}

const (
	hamiJSON = `[{"id":"` + gpuA + `","count":10,"devmem":32768,"devcore":100,"type":"NVIDIA-Tesla V100-PCIE-32GB","numa":1,"mode":"hami-core","health":true},` +
		`{"id":"` + gpuB + `","index":1,"count":10,"devmem":32768,"devcore":100,"type":"NVIDIA-Tesla V100-PCIE-32GB","numa":1,"mode":"hami-core","health":true}]`
	hami7 = gpuA + `,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:` + gpuB + `,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,false:`
	hami9 = gpuB + `,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true,1,hami-core:` + gpuA + `,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true,0,hami-core:`
	ours  = `{"version":1,"gpus":[` +
		`{"uuid":"` + gpuB + `","model":"NVIDIA-Tesla V100-PCIE-32GB","index":1,"memoryMiB":32768,"cores":100,"replicas":10,"mode":"hami-core","healthy":true},` +
		`{"uuid":"` + gpuA + `","model":"NVIDIA-Tesla V100-PCIE-32GB","index":0,"numa":0,"memoryMiB":32768,"cores":100,"replicas":10,"mode":"hami-core","healthy":true}],` +
		`"links":[[0,1850],[1850,0]],"later":{}}`
)

func TestDecodeNode(t *testing.T) {
	sick := v100(gpuB, 1, 0)
	sick.Healthy = false
	cordoned := v100(gpuB, 1, scheduler.NUMAUnknown)
	cordoned.Cordoned = true
	for _, test := range []struct {
		description string
		node        *scheduler.Node
		want        scheduler.Inventory
	}{
		{"nothing", node(), scheduler.Inventory{}},
		{"nothing of GPUs", &scheduler.Node{Name: "n"}, scheduler.Inventory{}},
		{"HAMi's JSON", node(api.AnnotationHAMiRegister, hamiJSON), scheduler.Inventory{GPUs: []scheduler.GPU{v100(gpuA, 0, 1), v100(gpuB, 1, 1)}}},
		{"HAMi's JSON of another version", node(api.AnnotationHAMiRegister, ` [{"id":"`+gpuA+`","customInfo":{"a":1},"health":false}]`),
			scheduler.Inventory{GPUs: []scheduler.GPU{{UUID: gpuA, Mode: "hami-core"}}}},
		{"HAMi's list of 7 fields", node(api.AnnotationHAMiRegister, hami7), scheduler.Inventory{GPUs: []scheduler.GPU{v100(gpuA, 0, 0), sick}}},
		{"HAMi's list of 9 fields, out of order", node(api.AnnotationHAMiRegister, hami9), scheduler.Inventory{GPUs: []scheduler.GPU{v100(gpuA, 0, 0), v100(gpuB, 1, 0)}}},
		{"HAMi's, none", node(api.AnnotationHAMiRegister, "[]"), scheduler.Inventory{GPUs: []scheduler.GPU{}}},
		{"HAMi's links", node(api.AnnotationHAMiRegister, hamiJSON, api.AnnotationHAMiScore, `[{"uuid":"`+gpuA+`","score":{"`+gpuB+`":1850,"`+gpuC+`":7}},{"uuid":"`+gpuB+`","score":{"`+gpuA+`":50}},{"uuid":"`+gpuC+`","score":{"`+gpuA+`":9}}]`),
			scheduler.Inventory{GPUs: []scheduler.GPU{v100(gpuA, 0, 1), v100(gpuB, 1, 1)}, Links: [][]int{{0, 50}, {50, 0}}}},
		{"HAMi's negative links", node(api.AnnotationHAMiRegister, hamiJSON, api.AnnotationHAMiScore, `[{"uuid":"`+gpuA+`","score":{"`+gpuB+`":-1}}]`),
			scheduler.Inventory{GPUs: []scheduler.GPU{v100(gpuA, 0, 1), v100(gpuB, 1, 1)}, Links: [][]int{{0, 0}, {0, 0}}}},
		{"ours", node(api.AnnotationNodeGPUs, ours, api.AnnotationHAMiRegister, hami7, api.AnnotationHAMiScore, "x"),
			scheduler.Inventory{GPUs: []scheduler.GPU{v100(gpuA, 0, 0), v100(gpuB, 1, scheduler.NUMAUnknown)}, Links: [][]int{{0, 1850}, {1850, 0}}}},
		{"ours, without links", node(api.AnnotationNodeGPUs, strings.Replace(ours, `"links"`, `"other"`, 1)),
			scheduler.Inventory{GPUs: []scheduler.GPU{v100(gpuA, 0, 0), v100(gpuB, 1, scheduler.NUMAUnknown)}}},
		{"a cordon", node(api.AnnotationNodeGPUs, strings.Replace(ours, `"links"`, `"other"`, 1), api.AnnotationHAMiCordon, " "+gpuB+" , "+gpuC+",,"),
			scheduler.Inventory{GPUs: []scheduler.GPU{v100(gpuA, 0, 0), cordoned}}},
		{"no cordon", node(api.AnnotationHAMiCordon, ""), scheduler.Inventory{}},
	} {
		t.Run(test.description, func(t *testing.T) {
			got, _, err := DecodeNode(test.node)
			require.NoError(t, err)
			require.NoError(t, warningOf(test.node))
			_, ours := test.node.Annotations[api.AnnotationNodeGPUs]
			_, registered := test.node.Annotations[api.AnnotationHAMiRegister]
			assert.Equal(t, registered && !ours, got.HAMi)
			got.HAMi = false
			assert.Equal(t, test.want, got)
		})
	}
}

func TestDecodeNodeWarnings(t *testing.T) {
	want := []scheduler.GPU{v100(gpuA, 0, 1), v100(gpuB, 1, 1)}
	for _, test := range []struct{ description, key, value, want string }{
		{"ours of a later version", api.AnnotationNodeGPUs, strings.Replace(ours, `"version":1`, `"version":2`, 1), "version 2: this scheduler supports version 1"},
		{"ours, cut short", api.AnnotationNodeGPUs, ours[:100], "invalid JSON"},
		{"links that are none", api.AnnotationHAMiScore, `{}`, "hami.io/node-nvidia-score: invalid JSON"},
		{"links without end", api.AnnotationHAMiScore, strings.Repeat("x", MaxAnnotationBytes+1), "more than the limit of 262144"},
	} {
		t.Run(test.description, func(t *testing.T) {
			n := node(api.AnnotationHAMiRegister, hamiJSON, test.key, test.value)
			got, _, err := DecodeNode(n)
			require.NoError(t, err)
			assert.Equal(t, want, got.GPUs)
			assert.Nil(t, got.Links)
			require.ErrorContains(t, warningOf(n), `node "node-1": annotation `+test.key)
			require.ErrorContains(t, warningOf(n), test.want)
		})
	}
}

// TestDecodeNodeSkips: an entry that can't be read costs neither the node nor the other entries.
func TestDecodeNodeSkips(t *testing.T) {
	both := []scheduler.GPU{v100(gpuA, 0, 1), v100(gpuB, 1, 1)}
	cordoned := slices.Clone(both)
	cordoned[1].Cordoned = true
	more := func(entry string) string { return strings.Replace(hamiJSON, "]", ","+entry+"]", 1) }
	links := func(entries string) string {
		return `[{"uuid":"` + gpuA + `","score":{"` + gpuB + `":7}}` + entries + `]`
	}
	linked := [][]int{{0, 7}, {7, 0}}
	for _, test := range []struct {
		description, key, value string
		gpus                    []scheduler.GPU
		links                   [][]int
		want                    string
	}{
		{"a cordon", api.AnnotationHAMiCordon, "gpu-0," + gpuB + ",x", cordoned, nil, `"gpu-0": must be a GPU's UUID`},
		{"a register entry of another type", api.AnnotationHAMiRegister, more("7"), both, nil, "GPU 2: invalid JSON"},
		{"a register entry with a text for a number", api.AnnotationHAMiRegister, more(`{"id":"` + gpuC + `","devmem":"5"}`), both, nil, "GPU 2: invalid JSON"},
		{"a register entry without UUID", api.AnnotationHAMiRegister, more(`{"devmem":5}`), both, nil, `GPU 2: uuid "": must be a GPU's UUID`},
		{"a GPU twice", api.AnnotationHAMiRegister, more(`{"id":"` + gpuA + `"}`), both, nil, "GPU 2: " + gpuA + " is listed more than once: skipped"},
		{"several", api.AnnotationHAMiRegister, more(`1,2,3`), both, nil, "skipped, and 2 more"},
		{"a list's entry", api.AnnotationHAMiRegister, gpuC + ",1,1,1,t,0,true,0:" + hami9, []scheduler.GPU{v100(gpuA, 0, 0), v100(gpuB, 1, 0)}, nil, "GPU 0: 8 fields"},
		{"a row of links", api.AnnotationHAMiScore, links(",8"), both, linked, "GPU 1: invalid JSON"},
		{"a link", api.AnnotationHAMiScore, links(`,{"uuid":"` + gpuB + `","score":{"` + gpuA + `":2000000}}`), both, linked, "GPU 1: score 2000000 of " + gpuB},
	} {
		t.Run(test.description, func(t *testing.T) {
			n := node(api.AnnotationHAMiRegister, hamiJSON, test.key, test.value)
			got, warning, err := DecodeNode(n)
			require.NoError(t, err)
			assert.Equal(t, scheduler.Inventory{GPUs: test.gpus, Links: test.links, HAMi: true}, got)
			require.ErrorContains(t, warning, `node "node-1": annotation `+test.key+": ")
			require.ErrorContains(t, warning, test.want)
			require.ErrorContains(t, warning, ": skipped")
		})
	}
}

func TestDecodeNodeRefuses(t *testing.T) {
	one := func(format string, args ...any) string {
		return fmt.Sprintf(`[{"id":"`+gpuA+`",`+format+`}]`, args...)
	}
	many := "[" + strings.TrimSuffix(strings.Repeat(`{"id":"x"},`, MaxGPUs+1), ",") + "]"
	of := func(old, new string) string { return strings.Replace(ours, old, new, 1) }
	for _, test := range []struct{ description, key, value, want string }{
		{"neither form", api.AnnotationHAMiRegister, "GPU-a", "it may be truncated"},
		{"empty", api.AnnotationHAMiRegister, "", "it may be truncated"},
		{"JSON, cut short", api.AnnotationHAMiRegister, hamiJSON[:80], "invalid JSON"},
		{"a number as text", api.AnnotationHAMiRegister, one(`"devmem":"5"`), "invalid JSON"},
		{"a number that is too large", api.AnnotationHAMiRegister, one(`"devmem":99999999999999999999`), "invalid JSON"},
		{"a number without end", api.AnnotationHAMiRegister, one(`"devmem":%s`, strings.Repeat("9", 1<<16)), "invalid JSON"},
		{"memory", api.AnnotationHAMiRegister, one(`"devmem":%d`, 1<<25), "GPU 0: memory 33554432: must be from 0 to 16777216"},
		{"negative memory", api.AnnotationHAMiRegister, one(`"devmem":-1`), "memory -1"},
		{"negative replicas", api.AnnotationHAMiRegister, one(`"count":-1`), "replicas -1"},
		{"cores", api.AnnotationHAMiRegister, one(`"devcore":70000`), "cores 70000"},
		{"index", api.AnnotationHAMiRegister, one(`"index":5000`), "index 5000"},
		{"numa", api.AnnotationHAMiRegister, one(`"numa":5000`), "numa 5000"},
		{"mode", api.AnnotationHAMiRegister, one(`"mode":"x"`), `mode "x": must be hami-core, mig or mps`},
		{"model", api.AnnotationHAMiRegister, one(`"type":"%s"`, strings.Repeat("x", 300)), "model"},
		{"no UUID", api.AnnotationHAMiRegister, `[{"id":"GPU-1"}]`, `GPU 0: uuid "GPU-1": must be a GPU's UUID`},
		{"too many GPUs", api.AnnotationHAMiRegister, many, "65 GPUs: a node may have at most 64"},
		{"too many in the list", api.AnnotationHAMiRegister, strings.Repeat("x:", MaxGPUs+1), "65 GPUs"},
		{"8 fields", api.AnnotationHAMiRegister, gpuA + ",1,1,1,t,0,true,0:", "GPU 0: 8 fields"},
		{"a field that is no number", api.AnnotationHAMiRegister, gpuA + ",1,x,1,t,0,true:", `devmem "x": must be a number`},
		{"a health that is none", api.AnnotationHAMiRegister, gpuA + ",1,1,1,t,0,good:", `health "good": must be true or false`},
		{"too long", api.AnnotationHAMiRegister, strings.Repeat("x", MaxAnnotationBytes+1), "more than the limit of 262144"},
		{"ours, too long", api.AnnotationNodeGPUs, strings.Repeat("x", MaxAnnotationBytes+1), "more than the limit of 262144"},
		{"ours, no version", api.AnnotationNodeGPUs, `{"gpus":[]}`, "version 0"},
		{"ours, no health", api.AnnotationNodeGPUs, of(`"healthy"`, `"h"`), "GPU 0: memoryMiB, cores, replicas and healthy are required"},
		{"ours, no memory", api.AnnotationNodeGPUs, of(`"memoryMiB"`, `"h"`), "are required"},
		{"ours, null", api.AnnotationNodeGPUs, of(`"replicas":10`, `"replicas":null`), "are required"},
		{"ours, a GPU twice", api.AnnotationNodeGPUs, of(gpuA, gpuB), "is listed more than once"},
		{"ours, links of other GPUs", api.AnnotationNodeGPUs, of("[0,1850],", ""), "links: 1 rows for 2 GPUs"},
		{"ours, a row too long", api.AnnotationNodeGPUs, of("[0,1850]", "[0,1850,0]"), "row 0 has 3 columns for 2 GPUs"},
		{"ours, links that differ", api.AnnotationNodeGPUs, of("[0,1850]", "[0,1]"), "links: 1 from GPU 0 to GPU 1"},
		{"ours, a GPU linked with itself", api.AnnotationNodeGPUs, of("[0,1850]", "[1,1850]"), "links: 1 from GPU 0 to GPU 0"},
		{"ours, a negative link", api.AnnotationNodeGPUs, of("[[0,1850],[1850,0]]", "[[0,-1],[-1,0]]"), "links: -1"},
		{"a cordon without end", api.AnnotationHAMiCordon, strings.Repeat(",", MaxAnnotationBytes+1), "more than the limit of 262144"},
	} {
		t.Run(test.description, func(t *testing.T) {
			got, _, err := DecodeNode(node(test.key, test.value))
			require.ErrorContains(t, err, `node "node-1": annotation `+test.key)
			require.ErrorContains(t, err, test.want)
			assert.Less(t, len(err.Error()), 600)
			assert.Equal(t, scheduler.Inventory{}, got)
		})
	}
	_, _, err := DecodeNode(node(api.AnnotationNodeGPUs, "x", api.AnnotationHAMiRegister, "y"))
	require.ErrorContains(t, err, "annotation gpuslice.io/node-gpus: invalid JSON")
	require.ErrorContains(t, err, "; annotation hami.io/node-nvidia-register: ", "two invalid annotations are both reported")
}

func warningOf(n *scheduler.Node) error {
	_, warning, _ := DecodeNode(n)
	return warning
}

// TestAnnotationsThatDisagree: one of the two is left over, and the node is used by ours.
func TestAnnotationsThatDisagree(t *testing.T) {
	second := `{"id":"` + gpuB + `"`
	for _, test := range []struct{ name, hami, want string }{
		{"the same, and other words", strings.ReplaceAll(hamiJSON, `"numa":1`, `"numa":0`), ""},
		{"older and the same", hami9, ""},
		{"not healthy", hami7, ""},
		{"another GPU", strings.Replace(hamiJSON, second, `{"id":"`+gpuC+`"`, 1), "GPU " + gpuB + " is only in the first"},
		{"one more", strings.Replace(hamiJSON, `]`, `,{"id":"`+gpuC+`"}]`, 1), `GPU "` + gpuC + `" is only in the second`},
		{"less memory", strings.Replace(hamiJSON, `32768`, `16384`, 1), "GPU " + gpuA + " has 32768 MiB in the first and 16384 in the second"},
		{"not to be read", "nonsense", "annotation " + api.AnnotationHAMiRegister + `: "nonsense": neither JSON`},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := node(api.AnnotationNodeGPUs, ours, api.AnnotationHAMiRegister, test.hami)
			inventory, _, err := DecodeNode(n)
			require.NoError(t, err)
			require.Len(t, inventory.GPUs, 2)
			require.EqualValues(t, 32768, inventory.GPUs[0].MemoryMiB)
			if test.want == "" {
				require.NoError(t, warningOf(n))
				return
			}
			require.ErrorContains(t, warningOf(n), test.want)
		})
	}
}
