package request

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
)

// operator is a config with two slices, where nothing is allowed that isn't by default.
func operator() Config {
	c := DefaultConfig()
	c.Path = "/etc/gpuslice/runtime.yaml"
	c.Slices = map[string]Slice{
		"small": {Amount: Amount{Size{MiB: 4096}, 10}},
		"pair":  {Amount: Amount{Size{Percent: 50}, 0}, Devices: Devices{Count: 2}, HighPriority: true},
	}
	return c
}

type notes = map[string]string

func TestFromContainer(t *testing.T) {
	grantOf := func(names ...string) string {
		var entries []string
		for i, name := range names {
			entries = append(entries, fmt.Sprintf(`%q:[{"uuid":%q,"memoryMiB":%d,"cores":30}]`, name, gpu0, 1000+i))
		}
		return `{"version":1,"containers":{` + strings.Join(entries, ",") + `}}`
	}
	granted := func(mib int64) *Request {
		return &Request{Shares: []grant.Share{{UUID: gpu0, MemoryMiB: mib, CorePercent: 30}}}
	}
	amount := func(mib int64, cores int) Amount { return Amount{Size{MiB: mib}, Cores(cores)} }
	for _, tt := range []struct {
		description string
		env         []string
		notes       notes
		want        *Request
	}{
		{"nothing", nil, nil, nil},
		{"what others set", []string{"PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all", "CUDA_VISIBLE_DEVICES=0"}, notes{"org.example": "8GiB"}, nil},
		{"empty values", []string{"GPUSLICE_MEMORY=", "GPUSLICE_DEVICES=", "CUDA_DEVICE_MEMORY_LIMIT="}, notes{api.AnnotationMemory: "", api.AnnotationGrant: ""}, nil},
		{"not variables", []string{"GPUSLICE_MEMORY", "", "=GPUSLICE_MEMORY=8g", "XGPUSLICE_MEMORY=8g", "gpuslice_memory=8g"}, nil, nil},

		{"memory", []string{"GPUSLICE_MEMORY=8GiB"}, nil, &Request{Amount: amount(8192, 0)}},
		{"all of it", []string{"GPUSLICE_MEMORY=25%", "GPUSLICE_CORES=30", "GPUSLICE_DEVICES=2", "GPUSLICE_PRIORITY=1"}, nil,
			&Request{Devices: Devices{Count: 2}, Amount: Amount{Size{Percent: 25}, 30}}},
		{"by annotations", nil, notes{api.AnnotationMemory: "8g", api.AnnotationCores: "30%", api.AnnotationDevices: "device=0", api.AnnotationPriority: "1"},
			&Request{Devices: Devices{Names: []string{"0"}}, Amount: amount(8192, 30)}},
		{"only devices", []string{"GPUSLICE_DEVICES=all"}, nil, &Request{Devices: Devices{All: true}}},
		{"only cores", []string{"GPUSLICE_CORES=5"}, nil, &Request{Amount: Amount{CorePercent: 5}}},
		{"twice with one value", []string{"GPUSLICE_MEMORY=1g", "GPUSLICE_MEMORY=1g"}, nil, &Request{Amount: amount(1024, 0)}},

		{"annotations win, each over its own", []string{"GPUSLICE_MEMORY=8g", "GPUSLICE_CORES=10", "GPUSLICE_DEVICES=3"}, notes{api.AnnotationMemory: "1g", api.AnnotationDevices: "2"},
			&Request{Devices: Devices{Count: 2}, Amount: amount(1024, 10)}},
		{"an annotation over a bad variable", []string{"GPUSLICE_MEMORY=junk"}, notes{api.AnnotationMemory: "1g"}, &Request{Amount: amount(1024, 0)}},
		{"an annotation over HAMi's variables", []string{"CUDA_DEVICE_MEMORY_LIMIT_3=junk", "CUDA_DEVICE_SM_LIMIT=20"}, notes{api.AnnotationMemory: "1g"}, &Request{Amount: amount(1024, 20)}},
		{"an annotation over a slice", []string{"GPUSLICE_SLICE=pair"}, notes{api.AnnotationMemory: "1g"}, &Request{Amount: amount(1024, 0)}},
		{"an annotation of cores over a slice", []string{"GPUSLICE_SLICE=pair"}, notes{api.AnnotationCores: "20"}, &Request{Amount: amount(0, 20)}},
		{"an annotation of a priority over a slice", []string{"GPUSLICE_SLICE=pair", "GPUSLICE_MEMORY=1g"}, notes{api.AnnotationPriority: "1"}, &Request{Amount: amount(1024, 0)}},
		{"a slice's annotation over variables", []string{"GPUSLICE_MEMORY=8g", "GPUSLICE_CORES=99", "GPUSLICE_PRIORITY=0", "CUDA_DEVICE_SM_LIMIT_1=4"}, notes{api.AnnotationSlice: "small"},
			&Request{Amount: amount(4096, 10), Slice: "small"}},

		{"a slice", []string{"GPUSLICE_SLICE=small"}, nil, &Request{Amount: amount(4096, 10), Slice: "small"}},
		{"several of a slice", []string{"GPUSLICE_SLICE=small", "GPUSLICE_DEVICES=2"}, nil, &Request{Amount: amount(4096, 10), Devices: Devices{Count: 2}, Slice: "small"}},
		{"a slice of high priority", nil, notes{api.AnnotationSlice: "pair"}, &Request{Amount: Amount{Memory: Size{Percent: 50}}, Devices: Devices{Count: 2}, HighPriority: true, Slice: "pair"}},
		{"a slice and its own devices", []string{"GPUSLICE_SLICE=pair", "GPUSLICE_DEVICES=count=2"}, nil,
			&Request{Amount: Amount{Memory: Size{Percent: 50}}, Devices: Devices{Count: 2}, HighPriority: true, Slice: "pair"}},

		{"HAMi's", []string{"CUDA_DEVICE_MEMORY_LIMIT=4g", "CUDA_DEVICE_SM_LIMIT=50"}, nil, &Request{Amount: amount(4096, 50)}},
		{"HAMi's in bytes", []string{"CUDA_DEVICE_MEMORY_LIMIT=4294967296"}, nil, &Request{Amount: amount(4096, 0)}},
		{"HAMi's of one GPU", []string{"CUDA_DEVICE_MEMORY_LIMIT_0=4000m"}, nil, &Request{Devices: Devices{Count: 1}, Each: map[int]Amount{0: amount(4000, 0)}}},
		{"HAMi's of two GPUs", []string{"CUDA_DEVICE_MEMORY_LIMIT_0=4000m", "CUDA_DEVICE_MEMORY_LIMIT_1=2g", "CUDA_DEVICE_SM_LIMIT=30"}, nil,
			&Request{Devices: Devices{Count: 2}, Amount: Amount{CorePercent: 30}, Each: map[int]Amount{0: amount(4000, 0), 1: amount(2048, 0)}}},
		{"HAMi's cores of a GPU", []string{"CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_DEVICE_SM_LIMIT_1=30", "GPUSLICE_DEVICES=0,2"}, nil,
			&Request{Devices: Devices{Names: []string{"0", "2"}}, Amount: amount(1024, 0), Each: map[int]Amount{1: {CorePercent: 30}}}},
		{"HAMi's word for no share of compute time", []string{"CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_DEVICE_SM_LIMIT=0"}, nil, &Request{Amount: amount(1024, 0)}},
		{"HAMi's word for no share is no request", []string{"CUDA_DEVICE_SM_LIMIT=0"}, nil, nil},
		{"both ways, agreed", []string{"GPUSLICE_MEMORY=4GiB", "CUDA_DEVICE_MEMORY_LIMIT_0=4096m", "CUDA_DEVICE_MEMORY_LIMIT=4g", "GPUSLICE_CORES=30%", "CUDA_DEVICE_SM_LIMIT=30"}, nil,
			&Request{Devices: Devices{Count: 1}, Amount: amount(4096, 30), Each: map[int]Amount{0: amount(4096, 0)}}},
		{"HAMi's beside all GPUs", []string{"CUDA_DEVICE_MEMORY_LIMIT_7=1g", "GPUSLICE_DEVICES=all"}, nil, &Request{Devices: Devices{All: true}, Each: map[int]Amount{7: amount(1024, 0)}}},

		{"a grant", nil, notes{api.AnnotationGrant: grantOf("main")}, granted(1000)},
		{"a grant over every variable", []string{"GPUSLICE_MEMORY=junk", "GPUSLICE_SLICE=none", "CUDA_DEVICE_SM_LIMIT=x", "GPUSLICE_MEM=1"}, notes{api.AnnotationGrant: grantOf("main")}, granted(1000)},
		{"a grant by containerd's name", nil, notes{api.AnnotationGrant: grantOf("a", "b"), "io.kubernetes.cri.container-name": "b"}, granted(1001)},
		{"a grant by the kubelet's name", nil, notes{api.AnnotationGrant: grantOf("a", "b"), "io.kubernetes.container.name": "a"}, granted(1000)},
		{"a grant by nerdctl's name", nil, notes{api.AnnotationGrant: grantOf("a", "b"), "nerdctl/name": "b"}, granted(1001)},
		{"the only grant, whatever nerdctl calls the container", nil, notes{api.AnnotationGrant: grantOf("main"), "nerdctl/name": "box-1"}, granted(1000)},
		{"a pod's grant for another container", nil, notes{api.AnnotationGrant: grantOf("a"), "io.kubernetes.cri.container-name": "b"}, nil},
	} {
		t.Run(tt.description, func(t *testing.T) {
			got, err := FromContainer(tt.env, tt.notes, operator())
			require.NoError(t, err)
			if tt.want != nil && tt.want.Each == nil && tt.want.Slice == "" && tt.want.Shares == nil {
				tt.want.Each = map[int]Amount{}
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

func TestFromContainerRefuses(t *testing.T) {
	grantText := `{"version":1,"containers":{"a":[{"uuid":"` + gpu0 + `","memoryMiB":1,"cores":1}],"b":[{"uuid":"` + gpu0 + `","memoryMiB":1,"cores":1}]}}`
	for _, tt := range []struct {
		description string
		env         []string
		notes       notes
		kind        error
		contains    []string
	}{
		{"junk", []string{"GPUSLICE_MEMORY=lots"}, nil, grant.ErrMalformed, []string{`GPUSLICE_MEMORY: "lots" is not a size`}},
		{"zero", []string{"GPUSLICE_MEMORY=0g"}, nil, grant.ErrMalformed, []string{`GPUSLICE_MEMORY: "0g" is less than 1 MiB`}},
		{"negative", []string{"GPUSLICE_MEMORY=-8g"}, nil, grant.ErrMalformed, []string{`GPUSLICE_MEMORY: "-8g"`}},
		{"no unit", []string{"GPUSLICE_MEMORY=8000"}, nil, grant.ErrMalformed, []string{`GPUSLICE_MEMORY: "8000" has no unit`}},
		{"cores", []string{"GPUSLICE_CORES=0"}, nil, grant.ErrMalformed, []string{`GPUSLICE_CORES: "0"`, "from 1 to 100"}},
		{"devices", []string{"GPUSLICE_DEVICES=0"}, nil, grant.ErrMalformed, []string{`GPUSLICE_DEVICES: "0"`, "device=0"}},
		{"in an annotation", nil, notes{api.AnnotationCores: "many"}, grant.ErrMalformed, []string{`gpuslice.io/cores: "many"`}},
		{"an index meant as a count", []string{"GPUSLICE_DEVICES=1:2:3"}, nil, grant.ErrMalformed, []string{"neither a GPU index nor a UUID"}},
		{"priority", []string{"GPUSLICE_MEMORY=1g", "GPUSLICE_PRIORITY=high"}, nil, grant.ErrMalformed, []string{`GPUSLICE_PRIORITY: "high" is not a priority`}},
		{"high priority", []string{"GPUSLICE_MEMORY=1g", "GPUSLICE_PRIORITY=0"}, nil, ErrForbidden, []string{"GPUSLICE_PRIORITY", "allowHighPriority in /etc/gpuslice/runtime.yaml"}},
		{"high priority by annotation", []string{"GPUSLICE_MEMORY=1g"}, notes{api.AnnotationPriority: "0"}, ErrForbidden, []string{"gpuslice.io/priority"}},
		{"only a priority", []string{"GPUSLICE_PRIORITY=1"}, nil, grant.ErrMalformed, []string{"GPUSLICE_PRIORITY requests no GPU by itself"}},
		{"a mistyped variable beside a request", []string{"GPUSLICE_MEMORY=1g", "GPUSLICE_CORE=30"}, nil, grant.ErrMalformed, []string{`"GPUSLICE_CORE" is not a variable of a request`, "GPUSLICE_CORES"}},
		{"only a mistyped variable", []string{"GPUSLICE_MEM=8GiB"}, nil, grant.ErrMalformed, []string{`"GPUSLICE_MEM" is not a variable of a request`, "GPUSLICE_MEMORY"}},
		{"a mistyped annotation", nil, notes{"gpuslice.io/mem": "8GiB"}, grant.ErrMalformed, []string{`"gpuslice.io/mem" is not an annotation of a request`, "gpuslice.io/memory"}},
		{"a mistyped annotation beside a request", []string{"GPUSLICE_MEMORY=1g"}, notes{"gpuslice.io/core": "8"}, grant.ErrMalformed, []string{`"gpuslice.io/core" is not an annotation of a request`}},

		{"twice, differently", []string{"GPUSLICE_MEMORY=1g", "A=b", "GPUSLICE_MEMORY=2g"}, nil, grant.ErrMalformed, []string{`"GPUSLICE_MEMORY" has two values, "1g" and "2g"`}},
		{"twice, once empty", []string{"GPUSLICE_MEMORY=1g", "GPUSLICE_MEMORY="}, nil, grant.ErrMalformed, []string{"has two values"}},
		{"twice, one of HAMi's", []string{"CUDA_DEVICE_SM_LIMIT=1", "CUDA_DEVICE_SM_LIMIT=2"}, nil, grant.ErrMalformed, []string{"has two values"}},
		{"both ways, contradicting", []string{"GPUSLICE_MEMORY=8g", "CUDA_DEVICE_MEMORY_LIMIT=4g"}, nil, grant.ErrMalformed, []string{`GPUSLICE_MEMORY is "8g", but CUDA_DEVICE_MEMORY_LIMIT is "4g"`, "set one of them"}},
		{"both ways, contradicting for a GPU", []string{"GPUSLICE_CORES=8", "CUDA_DEVICE_SM_LIMIT_0=9"}, nil, grant.ErrMalformed, []string{"CUDA_DEVICE_SM_LIMIT_0", "set one of them"}},
		{"a slice and an amount", []string{"GPUSLICE_SLICE=small", "GPUSLICE_MEMORY=8g"}, nil, grant.ErrMalformed, []string{"GPUSLICE_MEMORY and GPUSLICE_SLICE"}},
		{"a slice and HAMi's", []string{"GPUSLICE_SLICE=small", "CUDA_DEVICE_SM_LIMIT_1=8"}, nil, grant.ErrMalformed, []string{"CUDA_DEVICE_SM_LIMIT_1 and GPUSLICE_SLICE"}},
		{"a slice and a priority", nil, notes{api.AnnotationSlice: "small", api.AnnotationPriority: "1"}, grant.ErrMalformed, []string{"gpuslice.io/priority and gpuslice.io/slice"}},
		{"a slice and other devices", []string{"GPUSLICE_SLICE=pair", "GPUSLICE_DEVICES=3"}, nil, grant.ErrMalformed, []string{"pair has devices 2"}},
		{"no such slice", []string{"GPUSLICE_SLICE=huge"}, nil, ErrForbidden, []string{`GPUSLICE_SLICE: "huge" is not a slice of this node`, "pair, small", "runtime.yaml"}},

		{"HAMi's zero", []string{"CUDA_DEVICE_MEMORY_LIMIT=0"}, nil, grant.ErrMalformed, []string{`CUDA_DEVICE_MEMORY_LIMIT: "0"`}},
		{"HAMi's few bytes", []string{"CUDA_DEVICE_MEMORY_LIMIT_0=8000"}, nil, grant.ErrMalformed, []string{`CUDA_DEVICE_MEMORY_LIMIT_0: "8000"`, "bytes"}},
		{"HAMi's cores", []string{"CUDA_DEVICE_SM_LIMIT=101"}, nil, grant.ErrMalformed, []string{`CUDA_DEVICE_SM_LIMIT: "101"`}},
		{"HAMi's GPU 16", []string{"CUDA_DEVICE_MEMORY_LIMIT_16=1g"}, nil, grant.ErrMalformed, []string{"CUDA_DEVICE_MEMORY_LIMIT_16", "0 to 15"}},
		{"HAMi's GPU 01", []string{"CUDA_DEVICE_MEMORY_LIMIT_01=1g"}, nil, grant.ErrMalformed, []string{"CUDA_DEVICE_MEMORY_LIMIT_01"}},
		{"HAMi's GPU x", []string{"CUDA_DEVICE_SM_LIMIT_x=1"}, nil, grant.ErrMalformed, []string{"CUDA_DEVICE_SM_LIMIT_x"}},
		{"HAMi's GPU nothing", []string{"CUDA_DEVICE_SM_LIMIT_=1"}, nil, grant.ErrMalformed, []string{"CUDA_DEVICE_SM_LIMIT_"}},
		{"HAMi's of a GPU too many", []string{"CUDA_DEVICE_MEMORY_LIMIT_2=1g", "GPUSLICE_DEVICES=2"}, nil, grant.ErrMalformed, []string{"GPUSLICE_DEVICES requests \"2\"", "CUDA_DEVICE_MEMORY_LIMIT_2"}},

		{"a bad grant", nil, notes{api.AnnotationGrant: "{}"}, grant.ErrMalformed, []string{"gpuslice.io/grant: version is missing"}},
		{"a grant and an amount", nil, notes{api.AnnotationGrant: grantText, api.AnnotationMemory: "1g"}, grant.ErrMalformed, []string{"gpuslice.io/memory and gpuslice.io/grant"}},
		{"a grant of several", nil, notes{api.AnnotationGrant: grantText}, grant.ErrAmbiguous, []string{"2 containers (a, b)"}},
		{"a grant of several and another's name", nil, notes{api.AnnotationGrant: grantText, "nerdctl/name": "c"}, grant.ErrAmbiguous, []string{"2 containers (a, b)"}},
	} {
		t.Run(tt.description, func(t *testing.T) {
			got, err := FromContainer(tt.env, tt.notes, operator())
			require.ErrorIs(t, err, tt.kind)
			assert.Nil(t, got)
			for _, contains := range tt.contains {
				assert.ErrorContains(t, err, contains)
			}
		})
	}
}

func TestHighPriorityThatIsAllowed(t *testing.T) {
	c := operator()
	c.AllowHighPriority = true
	r, err := FromContainer([]string{"GPUSLICE_MEMORY=1g", "GPUSLICE_PRIORITY=0"}, nil, c)
	require.NoError(t, err)
	assert.True(t, r.HighPriority)
}

// Where the operator allows whole GPUs, NVIDIA's variable is a request for them.
func TestVisibleDevices(t *testing.T) {
	c := operator()
	c.AllowWholeGPUs = true
	whole := Amount{Memory: Size{Percent: 100}}
	for value, want := range map[string]*Request{
		"":                nil,
		"void":            nil,
		"none":            nil,
		"all":             {Amount: whole, Devices: Devices{All: true}},
		"0":               {Amount: whole, Devices: Devices{Names: []string{"0"}}},
		"1,0:1":           {Amount: whole, Devices: Devices{Names: []string{"1", "0:1"}}},
		gpu1 + "," + gpu0: {Amount: whole, Devices: Devices{Names: []string{gpu1, gpu0}}},
	} {
		got, err := FromContainer([]string{"NVIDIA_VISIBLE_DEVICES=" + value}, nil, c)
		require.NoError(t, err, value)
		assert.Equal(t, want, got, value)
	}
	_, err := FromContainer([]string{"NVIDIA_VISIBLE_DEVICES=GPU-1"}, nil, c)
	require.ErrorIs(t, err, grant.ErrMalformed)
	require.ErrorContains(t, err, "NVIDIA_VISIBLE_DEVICES")
	_, err = FromContainer([]string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=0"}, nil, c)
	require.ErrorContains(t, err, "has two values")

	r, err := FromContainer([]string{"NVIDIA_VISIBLE_DEVICES=all", "GPUSLICE_MEMORY=1g"}, nil, c)
	require.NoError(t, err)
	assert.True(t, r.Devices.IsZero(), "NVIDIA_VISIBLE_DEVICES of an image does not count beside an amount")
}

func FuzzFromContainer(f *testing.F) {
	for _, seed := range [][2]string{
		{"GPUSLICE_MEMORY=8GiB\nGPUSLICE_CORES=30", ""},
		{"GPUSLICE_DEVICES=device=0,1\nCUDA_DEVICE_MEMORY_LIMIT_1=4g\nCUDA_DEVICE_MEMORY_LIMIT=1g", "gpuslice.io/slice=small"},
		{"CUDA_DEVICE_SM_LIMIT=0\nNVIDIA_VISIBLE_DEVICES=all", `gpuslice.io/grant={"version":1,"containers":{"a":[{"uuid":"` + gpu0 + `","memoryMiB":1,"cores":1}]}}`},
		{"GPUSLICE_PRIORITY=0\nGPUSLICE_SLICE=pair", "gpuslice.io/memory=25%\nnerdctl/name=a"},
	} {
		f.Add(seed[0], seed[1], false)
		f.Add(seed[0], seed[1], true)
	}
	f.Fuzz(func(t *testing.T, env, annotations string, whole bool) {
		c := operator()
		c.AllowWholeGPUs = whole
		n := notes{}
		for line := range strings.SplitSeq(annotations, "\n") {
			key, value, _ := strings.Cut(line, "=")
			n[key] = value
		}
		r, err := FromContainer(strings.Split(env, "\n"), n, c)
		if err != nil {
			require.Nil(t, r)
			require.Less(t, len(err.Error()), 2000, "a tenant's text is repeated in short")
			return
		}
		if r == nil {
			return
		}
		require.Equal(t, r.HighPriority, r.Slice == "pair", "only the operator sets a high priority")
		require.True(t, r.Shares != nil || !r.Devices.IsZero() || r.Amount != Amount{} || len(r.Each) > 0)
		gpus := map[string]grant.GPU{
			gpu0: {UUID: gpu0, MemoryMiB: 81920, CorePercent: 100, Replicas: 10},
			gpu1: {UUID: gpu1, MemoryMiB: 40960, CorePercent: 100, Replicas: 10},
		}
		c.Indices = map[string]string{gpu0: "0", gpu1: "1"}
		shares, err := Choose(r, gpus, nil, c)
		if err == nil {
			require.NoError(t, grant.ValidateShares(shares))
			require.NoError(t, grant.CheckGPUs(shares, gpus))
		}
	})
}

// Variables can be the image's. Where the operator contains so they ask for nothing, whichever
// they are and however wrong.
func TestAnnotationsOnly(t *testing.T) {
	c := DefaultConfig()
	c.AnnotationsOnly, c.AllowWholeGPUs = true, true
	for _, env := range [][]string{
		{"GPUSLICE_MEMORY=8GiB"}, {"GPUSLICE_MEMORY=much"}, {"GPUSLICE_SLICE=small"},
		{"CUDA_DEVICE_MEMORY_LIMIT=8g"}, {"NVIDIA_VISIBLE_DEVICES=all"},
	} {
		r, err := FromContainer(env, nil, c)
		require.NoError(t, err, env)
		require.Nil(t, r, env)
		r, err = FromContainer(env, map[string]string{"gpuslice.io/memory": "2GiB"}, c)
		require.NoError(t, err, env)
		require.Equal(t, Size{MiB: 2048}, r.Memory, env)
	}
}
