package request

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

// node is four GPUs of 80 GiB: of GPU 1 most is in use, GPU 2 has no replica left, GPU 3
// no compute time.
func node() (map[string]grant.GPU, map[string]ledger.Usage, Config) {
	gpus := map[string]grant.GPU{}
	for _, uuid := range []string{gpu0, gpu1, gpu2, gpu3} {
		gpus[uuid] = grant.GPU{UUID: uuid, MemoryMiB: 81920, CorePercent: 100, Replicas: 10}
	}
	reserved := map[string]ledger.Usage{
		gpu1: {MemoryMiB: 65536, CorePercent: 50, Replicas: 2},
		gpu2: {MemoryMiB: 10, CorePercent: 10, Replicas: 10},
		gpu3: {MemoryMiB: 40960, CorePercent: 100, Replicas: 1},
	}
	c := operator()
	c.Indices = map[string]string{gpu0: "0", gpu1: "1", gpu2: "2", gpu3: "3"}
	return gpus, reserved, c
}

func withMIG(gpus map[string]grant.GPU, c Config) {
	gpus[mig0] = grant.GPU{UUID: mig0, MemoryMiB: 20096, CorePercent: 100, Replicas: 1}
	gpus[mig1] = grant.GPU{UUID: mig1, MemoryMiB: 9856, CorePercent: 100, Replicas: 1}
	c.Indices[mig0], c.Indices[mig1] = "4:0", "4:1"
}

func mib(n int64, cores int) Amount { return Amount{Size{MiB: n}, Cores(cores)} }
func percent(n, cores int) Amount   { return Amount{Size{Percent: n}, Cores(cores)} }
func names(all ...string) Devices   { return Devices{Names: all} }
func share(uuid string, n int64, c int) grant.Share {
	return grant.Share{UUID: uuid, MemoryMiB: n, CorePercent: c}
}

func TestChoose(t *testing.T) {
	for _, tt := range []struct {
		description string
		request     Request
		change      func(gpus map[string]grant.GPU, reserved map[string]ledger.Usage, c *Config)
		want        []grant.Share
	}{
		{"the fullest GPU that it fits on", Request{Amount: mib(8192, 30)}, nil, []grant.Share{share(gpu1, 8192, 30)}},
		{"all that is left of it", Request{Amount: mib(16384, 50)}, nil, []grant.Share{share(gpu1, 16384, 50)}},
		{"more than is left of it", Request{Amount: mib(16385, 30)}, nil, []grant.Share{share(gpu0, 16385, 30)}},
		{"more compute time than is left of it", Request{Amount: mib(1, 51)}, nil, []grant.Share{share(gpu0, 1, 51)}},
		{"no compute time is reserved if none is requested", Request{Amount: mib(20000, 0)}, nil, []grant.Share{share(gpu3, 20000, 0)}},
		{"a whole GPU", Request{Amount: percent(100, 0)}, nil, []grant.Share{share(gpu0, 81920, 0)}},
		{"percentages are of each GPU", Request{Amount: percent(25, 10)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, _ *Config) {
			gpus[gpu0] = grant.GPU{UUID: gpu0, MemoryMiB: 40001, CorePercent: 100, Replicas: 1}
		}, []grant.Share{share(gpu0, 10000, 10)}},
		{"a tie goes by index", Request{Amount: mib(8192, 60)}, func(_ map[string]grant.GPU, reserved map[string]ledger.Usage, c *Config) {
			clear(reserved)
			c.Indices = map[string]string{gpu0: "10", gpu1: "3", gpu2: "2", gpu3: "2:1"}
		}, []grant.Share{share(gpu2, 8192, 60)}},
		{"a tie without indices goes by UUID", Request{Amount: mib(8192, 60)}, func(_ map[string]grant.GPU, reserved map[string]ledger.Usage, c *Config) {
			clear(reserved)
			c.Indices = nil
		}, []grant.Share{share(gpu0, 8192, 60)}},
		{"two GPUs, listed as the node lists them", Request{Devices: Devices{Count: 2}, Amount: mib(8192, 30)}, nil, []grant.Share{share(gpu0, 8192, 30), share(gpu1, 8192, 30)}},
		{"listed so also where the first is the fullest", Request{Devices: Devices{Count: 2}, Amount: mib(8192, 30)}, func(_ map[string]grant.GPU, reserved map[string]ledger.Usage, _ *Config) {
			reserved[gpu0], reserved[gpu1] = reserved[gpu1], reserved[gpu0]
		}, []grant.Share{share(gpu0, 8192, 30), share(gpu1, 8192, 30)}},
		{"each with its own amount", Request{Devices: Devices{Count: 2}, Each: map[int]Amount{0: mib(8192, 0), 1: mib(60000, 0)}}, nil, []grant.Share{share(gpu1, 8192, 0), share(gpu0, 60000, 0)}},
		{"the large one first", Request{Devices: Devices{Count: 2}, Each: map[int]Amount{0: mib(60000, 0)}, Amount: mib(100, 5)}, nil, []grant.Share{share(gpu0, 60000, 5), share(gpu1, 100, 5)}},
		{"by index", Request{Devices: names("0"), Amount: mib(100, 0)}, nil, []grant.Share{share(gpu0, 100, 0)}},
		{"by UUID and index, in that order", Request{Devices: names(gpu3, "0"), Amount: mib(100, 0)}, nil, []grant.Share{share(gpu3, 100, 0), share(gpu0, 100, 0)}},
		{"named, each with its own", Request{Devices: names("1", "0"), Amount: mib(100, 0), Each: map[int]Amount{1: mib(200, 7)}}, nil, []grant.Share{share(gpu1, 100, 0), share(gpu0, 200, 7)}},
		{"all that may be used", Request{Devices: Devices{All: true}, Amount: percent(10, 0)}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Devices = []string{"3", gpu0}
		}, []grant.Share{share(gpu0, 8192, 0), share(gpu3, 8192, 0)}},
		{"only what may be used", Request{Amount: mib(8192, 0)}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Devices = []string{"0"}
		}, []grant.Share{share(gpu0, 8192, 0)}},

		{"the default amount", Request{Devices: names("0")}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Default = Slice{Amount: percent(10, 20), Devices: Devices{Count: 3}}
		}, []grant.Share{share(gpu0, 8192, 20)}},
		{"the default devices", Request{Amount: mib(100, 0)}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Default = Slice{Devices: names("3", "1")}
		}, []grant.Share{share(gpu3, 100, 0), share(gpu1, 100, 0)}},
		{"the whole GPU, where that is allowed", Request{Amount: Amount{CorePercent: 40}}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.AllowWholeGPUs = true
		}, []grant.Share{share(gpu0, 81920, 40)}},
		{"the maximum of compute time, if none is requested", Request{Amount: mib(20000, 0)}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Maximum.CorePercent = 30
		}, []grant.Share{share(gpu0, 20000, 30)}},
		{"at the maximum", Request{Devices: Devices{Count: 2}, Amount: mib(8192, 30)}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Maximum = Limit{Memory: Size{Percent: 10}, CorePercent: 30, Devices: 2}
		}, []grant.Share{share(gpu0, 8192, 30), share(gpu1, 8192, 30)}},
		{"a GPU on which it is within the maximum", Request{Amount: mib(8192, 0)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Maximum = Limit{Memory: Size{Percent: 10}}
			gpus[gpu1] = grant.GPU{UUID: gpu1, MemoryMiB: 81919, CorePercent: 100, Replicas: 10}
		}, []grant.Share{share(gpu3, 8192, 0)}},

		{"GPUs come before MIG devices", Request{Amount: mib(8192, 30)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) { withMIG(gpus, *c) }, []grant.Share{share(gpu1, 8192, 30)}},
		{"the smallest MIG device that is enough, whole", Request{Amount: mib(8192, 30)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			withMIG(gpus, *c)
			c.Devices = []string{mig0, mig1}
		}, []grant.Share{share(mig1, 9856, 100)}},
		{"a MIG device of a GPU that may be used, by its index", Request{Amount: mib(8192, 0)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			withMIG(gpus, *c)
			c.Devices = []string{"4"}
		}, []grant.Share{share(mig1, 9856, 100)}},
		{"a MIG device of a GPU that may be used, by its UUID", Request{Amount: mib(8192, 0)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			withMIG(gpus, *c)
			c.Devices = []string{gpu0} // which is cut up
			delete(gpus, gpu0)
			c.Indices[gpu0] = "4"
		}, []grant.Share{share(mig1, 9856, 100)}},
		{"the next MIG device", Request{Amount: mib(8192, 0)}, func(gpus map[string]grant.GPU, reserved map[string]ledger.Usage, c *Config) {
			withMIG(gpus, *c)
			c.Devices = []string{mig0, mig1}
			reserved[mig1] = ledger.Usage{MemoryMiB: 9856, CorePercent: 100, Replicas: 1}
		}, []grant.Share{share(mig0, 20096, 100)}},
		{"MIG devices if GPUs are full", Request{Devices: Devices{Count: 2}, Amount: mib(9000, 60)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) { withMIG(gpus, *c) },
			[]grant.Share{share(mig0, 20096, 100), share(mig1, 9856, 100)}},
		{"MIG devices by index", Request{Devices: names("4:1"), Amount: mib(100, 0)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) { withMIG(gpus, *c) }, []grant.Share{share(mig1, 9856, 100)}},
		{"no more than all of a MIG device's compute time", Request{Devices: names(mig1), Amount: mib(100, 0)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			withMIG(gpus, *c)
			gpus[mig1] = grant.GPU{UUID: mig1, MemoryMiB: 9856, CorePercent: 150, Replicas: 1}
		}, []grant.Share{share(mig1, 9856, 100)}},
		{"a maximum of compute time is not for MIG devices", Request{Devices: names(mig1), Amount: mib(100, 0)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			withMIG(gpus, *c)
			c.Maximum.CorePercent = 30
		}, []grant.Share{share(mig1, 9856, 100)}},
		{"all are GPUs where there are both", Request{Devices: Devices{All: true}, Amount: mib(1, 0)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			withMIG(gpus, *c)
			c.Devices = []string{"0", "4:0", "4:1"}
		}, []grant.Share{share(gpu0, 1, 0)}},
		{"all are MIG devices where there are no GPUs", Request{Devices: Devices{All: true}, Amount: mib(1, 0)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			withMIG(gpus, *c)
			c.Devices = []string{"4:0", "4:1"}
		}, []grant.Share{share(mig0, 20096, 100), share(mig1, 9856, 100)}},

		{"a grant", Request{Shares: []grant.Share{share(gpu3, 77, 0), share(gpu1, 16384, 50)}}, nil, []grant.Share{share(gpu3, 77, 0), share(gpu1, 16384, 50)}},
	} {
		t.Run(tt.description, func(t *testing.T) {
			gpus, reserved, c := node()
			if tt.change != nil {
				tt.change(gpus, reserved, &c)
			}
			got, err := Choose(&tt.request, gpus, reserved, c)
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
			require.NoError(t, grant.CheckGPUs(got, gpus))
			for range 20 {
				again, err := Choose(&tt.request, gpus, reserved, c)
				require.NoError(t, err)
				require.Equal(t, got, again, "always the same")
			}
		})
	}
}

func TestChooseRefuses(t *testing.T) {
	for _, tt := range []struct {
		description string
		request     Request
		change      func(gpus map[string]grant.GPU, reserved map[string]ledger.Usage, c *Config)
		kind        error
		contains    []string
	}{
		{"more than a GPU has", Request{Amount: mib(81921, 0)}, nil, grant.ErrOverbooked,
			[]string{"never have a GPU with 81921MiB of memory", "GPU 0 (" + gpu0 + ") has 81920 MiB and 100 %", "Request less"}},
		{"more than is free", Request{Amount: mib(8192, 100), Devices: names("1", "2")}, nil, grant.ErrOverbooked,
			[]string{"2 GPUs with 8GiB of memory and 100 % of compute time each", "GPU 1 (" + gpu1 + "): 16384 of 81920 MiB, 50 of 100 % and 8 of 10 replicas", "0 of 10 replicas", "Wait until a container ends", "request less"}},
		{"more than all of a named GPU", Request{Amount: mib(500<<10, 0), Devices: names("0")}, nil, grant.ErrOverbooked, []string{"never have a GPU with 500GiB", "GPU 0 (" + gpu0 + ") has 81920 MiB", "Request less"}},
		{"all on a node with a cordoned GPU", Request{Devices: Devices{Count: 4}, Amount: mib(1, 0)}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) { c.Cordoned = []string{gpu3} },
			grant.ErrOverbooked, []string{"4 GPUs are more than this node has", "it has 3", "cordoned: GPU 3 (" + gpu3 + ") (gpuslice uncordon)"}},
		{"a cordoned GPU", Request{Devices: names("3"), Amount: mib(1, 0)}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) { c.Cordoned = []string{gpu3} },
			grant.ErrUnknownGPU, []string{"GPU 3 (" + gpu3 + ") is cordoned", "gpuslice uncordon 3"}},
		{"every GPU is cordoned", Request{Amount: mib(1, 0)}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Cordoned = []string{gpu0, gpu1, gpu2, gpu3}
		}, grant.ErrUnknownGPU, []string{"this node has no GPU for containers", "cordoned: GPU 0"}},
		{"a grant of a cordoned GPU", Request{Shares: []grant.Share{share(gpu3, 77, 0)}}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) { c.Cordoned = []string{gpu3} },
			grant.ErrUnknownGPU, []string{"is cordoned"}},
		{"not so many free GPUs", Request{Devices: Devices{Count: 3}, Amount: mib(1024, 10)}, nil, grant.ErrOverbooked, []string{"3 GPUs with 1GiB of memory and 10 % of compute time each"}},
		{"more GPUs than there are", Request{Devices: Devices{Count: 5}, Amount: mib(1, 0)}, nil, grant.ErrOverbooked, []string{"5 GPUs are more than this node has", "it has 4 (GPU 0 (" + gpu0 + "); GPU 1", "Request fewer"}},
		{"each fits a GPU, and both the same one", Request{Devices: Devices{Count: 2}, Each: map[int]Amount{0: mib(60000, 60), 1: mib(50000, 60)}}, nil, grant.ErrOverbooked, []string{"60000MiB", "50000MiB"}},
		{"not all named GPUs are free", Request{Devices: names("0", "2"), Amount: mib(1, 0)}, nil, grant.ErrOverbooked, []string{"GPU 2", "0 of 10 replicas"}},
		{"not all GPUs are free", Request{Devices: Devices{All: true}, Amount: mib(1, 0)}, nil, grant.ErrOverbooked, []string{"GPU 2"}},
		{"an overbooked GPU has nothing free", Request{Devices: names("0"), Amount: mib(1, 0)}, func(_ map[string]grant.GPU, reserved map[string]ledger.Usage, _ *Config) {
			reserved[gpu0] = ledger.Usage{MemoryMiB: 90000, CorePercent: 200, Replicas: 20}
		}, grant.ErrOverbooked, []string{"0 of 81920 MiB, 0 of 100 % and 0 of 10 replicas"}},

		{"no amount", Request{Devices: names("0")}, nil, ErrForbidden, []string{"GPUSLICE_MEMORY", "default.memory", "allowWholeGPUs", "/etc/gpuslice/runtime.yaml"}},
		{"an amount of one GPU only", Request{Devices: names("0", "1"), Each: map[int]Amount{0: mib(1, 0)}}, nil, ErrForbidden, []string{"GPUSLICE_MEMORY"}},
		{"an amount of a GPU too many", Request{Devices: Devices{All: true}, Amount: mib(1, 0), Each: map[int]Amount{4: mib(1, 0)}}, nil, grant.ErrMalformed, []string{"GPU 4", "4 GPUs"}},
		{"more memory than the maximum", Request{Amount: mib(8193, 0)}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Maximum.Memory = Size{MiB: 8192}
		}, ErrForbidden, []string{"8193 MiB", "8192 MiB", "maximum.memory: 8GiB in /etc/gpuslice/runtime.yaml"}},
		{"more of the GPU than the maximum", Request{Amount: percent(26, 0)}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Maximum.Memory = Size{Percent: 25}
		}, ErrForbidden, []string{"maximum.memory: 25%"}},
		{"one of two is more than the maximum", Request{Devices: Devices{Count: 2}, Amount: mib(1, 0), Each: map[int]Amount{1: mib(9000, 0)}}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Maximum.Memory = Size{MiB: 8192}
		}, ErrForbidden, []string{"9000 MiB"}},
		{"named, more than the maximum", Request{Devices: names("0"), Amount: mib(8193, 0)}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Maximum.Memory = Size{MiB: 8192}
		}, ErrForbidden, []string{"maximum.memory"}},
		{"more compute time than the maximum", Request{Amount: mib(1, 31)}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Maximum.CorePercent = 30
		}, ErrForbidden, []string{"31 %", "30 %", "maximum.cores"}},
		{"more GPUs than the maximum", Request{Devices: Devices{All: true}, Amount: mib(1, 0)}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Maximum.Devices = 3
		}, ErrForbidden, []string{"4 GPUs", "maximum of 3", "maximum.devices"}},
		{"all of more GPUs than a container can have", Request{Devices: Devices{All: true}, Amount: mib(1, 0)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, _ *Config) {
			for i := range 13 {
				gpus[fmt.Sprintf("GPU-%08d-0000-4000-8000-00000000000a", i)] = gpus[gpu0]
			}
		}, grant.ErrMalformed, []string{"17 GPUs", "maximum of 16"}},
		{"a MIG device that is more than the maximum", Request{Devices: names(mig0), Amount: mib(100, 0)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			withMIG(gpus, *c)
			c.Maximum.Memory = Size{MiB: 10000}
		}, ErrForbidden, []string{"20096 MiB"}},

		{"an unknown GPU", Request{Devices: names("7"), Amount: mib(1, 0)}, nil, grant.ErrUnknownGPU, []string{`GPU "7"`, "GPU 0 (" + gpu0 + ")"}},
		{"an unknown UUID", Request{Devices: names(mig0), Amount: mib(1, 0)}, nil, grant.ErrUnknownGPU, []string{mig0}},
		{"an index where none is known", Request{Devices: names("0"), Amount: mib(1, 0)}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) { c.Indices = nil },
			grant.ErrUnknownGPU, []string{"use its UUID"}},
		{"an index that two GPUs have", Request{Devices: names("0"), Amount: mib(1, 0)}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) { c.Indices[gpu1] = "0" },
			grant.ErrAmbiguous, []string{"use its UUID"}},
		{"a GPU that is not allowed", Request{Devices: names(gpu0), Amount: mib(1, 0)}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) { c.Devices = []string{"1"} },
			ErrForbidden, []string{"GPU 0", "devices in /etc/gpuslice/runtime.yaml"}},
		{"a MIG device of a GPU that is not allowed", Request{Devices: names("4:0"), Amount: mib(1, 0)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			withMIG(gpus, *c)
			c.Devices = []string{"40", "0", "4:1"}
		}, ErrForbidden, []string{"GPU 4:0"}},
		{"no GPU may be used", Request{Amount: mib(1, 0)}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) { c.Devices = []string{mig0} },
			grant.ErrUnknownGPU, []string{"devices in"}},
		{"all of none", Request{Devices: Devices{All: true}, Amount: mib(1, 0)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, _ *Config) { clear(gpus) },
			grant.ErrUnknownGPU, []string{"this node has no GPU to share"}},
		{"the same GPU by both its names", Request{Devices: names("0", gpu0), Amount: mib(1, 0)}, nil, grant.ErrMalformed, []string{"listed twice"}},
		{"a GPU and a MIG device", Request{Devices: names("0", "4:0"), Amount: mib(1, 0)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) { withMIG(gpus, *c) },
			grant.ErrMalformed, []string{"either GPUs or MIG devices"}},
		{"more than a MIG device has", Request{Devices: names("4:1"), Amount: mib(9857, 0)}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) { withMIG(gpus, *c) },
			grant.ErrOverbooked, []string{"9857MiB"}},

		{"a grant on a full GPU", Request{Shares: []grant.Share{share(gpu1, 16385, 0)}}, nil, grant.ErrOverbooked, []string{"16385MiB"}},
		{"a grant beyond the GPU", Request{Shares: []grant.Share{share(gpu0, 100000, 0)}}, nil, grant.ErrOverbooked, []string{"100000MiB"}},
		{"a grant of an unknown GPU", Request{Shares: []grant.Share{share(mig0, 1, 0)}}, nil, grant.ErrUnknownGPU, []string{"gpuslice.io/grant", mig0}},
		{"a grant of a GPU that is not allowed", Request{Shares: []grant.Share{share(gpu0, 1, 0)}}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) { c.Devices = []string{"1"} },
			ErrForbidden, []string{"devices in"}},
		{"a grant beyond the maximum", Request{Shares: []grant.Share{share(gpu0, 8193, 0)}}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Maximum.Memory = Size{MiB: 8192}
		}, ErrForbidden, []string{"maximum.memory"}},
		{"a grant that isn't limited in compute time", Request{Shares: []grant.Share{share(gpu0, 1, 0)}}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Maximum.CorePercent = 30
		}, ErrForbidden, []string{"maximum.cores"}},
		{"a grant of too much compute time", Request{Shares: []grant.Share{share(gpu0, 1, 31)}}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Maximum.CorePercent = 30
		}, ErrForbidden, []string{"31 %", "maximum.cores"}},
		{"a grant of too many", Request{Shares: []grant.Share{share(gpu0, 1, 0), share(gpu1, 1, 0)}}, func(_ map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) {
			c.Maximum.Devices = 1
		}, ErrForbidden, []string{"maximum.devices"}},
		{"a grant of both kinds", Request{Shares: []grant.Share{share(gpu0, 1, 0), share(mig0, 1, 0)}}, func(gpus map[string]grant.GPU, _ map[string]ledger.Usage, c *Config) { withMIG(gpus, *c) },
			grant.ErrMalformed, []string{"either GPUs or MIG devices"}},
		{"a grant of nothing", Request{Shares: []grant.Share{}}, nil, grant.ErrMalformed, []string{"no share"}},
		{"a grant of a GPU twice", Request{Shares: []grant.Share{share(gpu0, 1, 0), share(gpu0, 1, 0)}}, nil, grant.ErrMalformed, []string{"already share 0"}},
	} {
		t.Run(tt.description, func(t *testing.T) {
			gpus, reserved, c := node()
			if tt.change != nil {
				tt.change(gpus, reserved, &c)
			}
			got, err := Choose(&tt.request, gpus, reserved, c)
			require.ErrorIs(t, err, tt.kind)
			assert.Nil(t, got)
			for _, contains := range tt.contains {
				assert.ErrorContains(t, err, contains)
			}
			if strings.Contains(err.Error(), "Wait until a container ends") {
				_, onEmpty := Choose(&tt.request, gpus, nil, c)
				assert.NoError(t, onEmpty, "a container's end can't help")
			}
			assert.NotContains(t, err.Error(), "\n", "docker shows one line")
		})
	}
}

func TestChooseNothing(t *testing.T) {
	shares, err := Choose(nil, nil, nil, operator())
	require.NoError(t, err)
	assert.Nil(t, shares)
}
