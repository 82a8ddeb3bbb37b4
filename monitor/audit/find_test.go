package audit

import (
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter/feedback"
)

const (
	gpuA = "GPU-00000001-5151-4000-8000-000000000001"
	gpuB = "GPU-00000002-5151-4000-8000-000000000002"
	migA = "MIG-00000001-5151-5000-8000-020100000001"
	mib  = 1 << 20
)

func granted(id string, devices ...Device) *Claim {
	return &Claim{Container: Container{ID: id, Namespace: "ns", Pod: "p-" + id, PodUID: "u-" + id, Name: "main"}, Devices: devices}
}

func limit(uuid string, mibs uint64) Device {
	return Device{UUID: uuid, LimitBytes: mibs * mib, ContextBytes: 400 * mib}
}

func proc(pid int, container string, l Limiter, on ...string) Process {
	p := Process{Process: orphans.Process{PID: pid, Start: uint64(pid) * 10}, Name: "python", Container: Container{ID: container}, Limiter: l}
	for _, uuid := range on {
		if p.Devices == nil {
			p.Devices = map[string]Memory{}
		}
		p.Devices[uuid] = Memory{Bytes: 100 * mib, Known: true}
	}
	return p
}

func (p Process) with(change func(*Process)) Process { change(&p); return p }

// found is a finding in a few words.
type found struct {
	kind      Kind
	container string
	pids      []int
	spared    bool
}

func TestFind(t *testing.T) {
	unknown, free := granted("a"), granted("a", limit(gpuA, 1000))
	unknown.Unknown, free.Uncontrolled = true, true
	damaged := granted("a", limit(gpuA, 1000))
	damaged.Damage = "spoilt"
	a := granted("a", limit(gpuA, 1000))
	host := granted("a", limit(gpuA, 1000))
	host.Process = true
	driver := func(p *Process) { p.Driver = true }
	cuda := func(p *Process) { p.Driver, p.CUDA = true, true }
	privileged := func(p *Process) { p.Admin, p.Privileged = true, true }
	files := func(f Files) func(*Process) { return func(p *Process) { p.Files = f } }
	has := func(node ...string) func(*Process) {
		return func(p *Process) { p.Open = append(slices.Clone(p.Open), node) }
	}
	holds := func(uuid string, mibs uint64) func(*Process) {
		return func(p *Process) { p.Devices = map[string]Memory{uuid: {Bytes: mibs * mib, Known: true}} }
	}
	for name, test := range map[string]struct {
		claims    []*Claim
		processes []Process
		want      []found
	}{
		"nothing runs": {claims: []*Claim{a}},
		"all is well":  {[]*Claim{a}, []Process{proc(1, "a", LimiterPresent, gpuA), proc(2, "a", LimiterAbsent), proc(3, "a", LimiterUnknown).with(driver)}, nil},
		"a container without a grant": {[]*Claim{a}, []Process{proc(1, "x", LimiterUnknown, gpuA), proc(2, "x", LimiterUnknown, gpuB), proc(3, "y", LimiterUnknown, gpuA)},
			[]found{{UngrantedProcess, "x", []int{1, 2}, false}, {UngrantedProcess, "y", []int{3}, false}}},
		"it is on no GPU":                           {nil, []Process{proc(1, "x", LimiterAbsent)}, nil},
		"its namespace is exempt":                   {nil, []Process{proc(1, "x", LimiterAbsent, gpuA).with(func(p *Process) { p.Exempt = true })}, nil},
		"its pod is not known":                      {nil, []Process{proc(1, "x", LimiterAbsent, gpuA).with(func(p *Process) { p.Spared = "not known" })}, []found{{UngrantedProcess, "x", []int{1}, true}}},
		"another GPU than was granted":              {[]*Claim{a}, []Process{proc(1, "a", LimiterPresent, gpuA, gpuB)}, []found{{UngrantedProcess, "a", []int{1}, false}}},
		"a GPU, for a MIG device":                   {[]*Claim{granted("a", limit(migA, 1000))}, []Process{proc(1, "a", LimiterPresent, gpuA)}, []found{{UngrantedProcess, "a", []int{1}, false}}},
		"a MIG device":                              {[]*Claim{granted("a", limit(migA, 1000))}, []Process{proc(1, "a", LimiterPresent, migA)}, nil},
		"processes of the host":                     {nil, []Process{proc(1, "", LimiterUnknown, gpuA), proc(2, "", LimiterUnknown, gpuA), proc(3, "", LimiterUnknown)}, []found{{HostProcess, "", []int{1}, true}, {HostProcess, "", []int{2}, true}}},
		"on a GPU without the limiter":              {[]*Claim{a}, []Process{proc(1, "a", LimiterAbsent, gpuA), proc(2, "a", LimiterPresent, gpuA)}, []found{{NoLimiter, "a", []int{1}, false}}},
		"the driver without the limiter":            {[]*Claim{a}, []Process{proc(1, "a", LimiterAbsent).with(driver)}, []found{{NoLimiter, "a", []int{1}, false}}},
		"another in the limiter's place":            {[]*Claim{a}, []Process{proc(1, "a", LimiterForeign, gpuA), proc(2, "a", LimiterAbsent, gpuA)}, []found{{NoLimiter, "a", []int{1, 2}, true}}},
		"a forged limiter":                          {[]*Claim{a}, []Process{proc(1, "a", LimiterForged, gpuA)}, []found{{NoLimiter, "a", []int{1}, false}}},
		"forged limits":                             {[]*Claim{a}, []Process{proc(1, "a", LimiterPresent, gpuA).with(files(FilesForeign)), proc(2, "a", LimiterPresent, gpuA).with(files(FilesOwn))}, []found{{ForeignFiles, "a", []int{1}, false}}},
		"forged limits, before a context":           {[]*Claim{a}, []Process{proc(1, "a", LimiterPresent).with(driver).with(files(FilesForeign))}, []found{{ForeignFiles, "a", []int{1}, false}}},
		"no limits, on a GPU":                       {[]*Claim{a}, []Process{proc(1, "a", LimiterPresent, gpuA).with(cuda).with(files(FilesAbsent))}, []found{{ForeignFiles, "a", []int{1}, false}}},
		"no limits, by OpenCL":                      {[]*Claim{a}, []Process{proc(1, "a", LimiterPresent, gpuA).with(driver).with(files(FilesAbsent))}, []found{{ForeignFiles, "a", []int{1}, true}}},
		"forged limits, by OpenCL":                  {[]*Claim{a}, []Process{proc(1, "a", LimiterPresent, gpuA).with(driver).with(files(FilesForeign))}, []found{{ForeignFiles, "a", []int{1}, false}}},
		"a descriptor, privileged":                  {[]*Claim{a}, []Process{proc(1, "a", LimiterPresent).with(has(gpuB)).with(privileged)}, []found{{ForeignDescriptor, "a", []int{1}, true}, {PrivilegedContainer, "a", nil, false}}},
		"a descriptor, without a grant, privileged": {nil, []Process{proc(1, "x", LimiterUnknown).with(has(gpuB)).with(privileged)}, []found{{ForeignDescriptor, "x", []int{1}, true}}},
		"CAP_SYS_ADMIN, and no process on a GPU":    {[]*Claim{a}, []Process{proc(1, "a", LimiterAbsent).with(func(p *Process) { p.Admin = true }), proc(2, "a", LimiterAbsent).with(privileged)}, []found{{PrivilegedContainer, "a", nil, false}}},
		"CAP_SYS_ADMIN, and its grant is not known": {[]*Claim{unknown}, []Process{proc(1, "a", LimiterAbsent).with(privileged)}, nil},
		"a command of the host":                     {[]*Claim{host}, []Process{proc(1, "a", LimiterPresent, gpuA).with(privileged)}, nil},
		"a descriptor, of a command of the host":    {[]*Claim{host}, []Process{proc(1, "a", LimiterPresent).with(has(gpuB))}, []found{{ForeignDescriptor, "a", []int{1}, true}}},
		"no limits, before a context":               {[]*Claim{a}, []Process{proc(1, "a", LimiterPresent).with(driver).with(files(FilesAbsent))}, nil},
		"no limits, graphics":                       {[]*Claim{a}, []Process{proc(1, "a", LimiterPresent).with(files(FilesAbsent)).with(func(p *Process) { p.Devices = map[string]Memory{gpuA: {Graphics: true}} })}, nil},
		"no limits, and no limiter":                 {[]*Claim{a}, []Process{proc(1, "a", LimiterAbsent, gpuA).with(files(FilesAbsent))}, []found{{NoLimiter, "a", []int{1}, false}}},
		"no limits, switched off":                   {[]*Claim{free}, []Process{proc(1, "a", LimiterPresent, gpuA).with(files(FilesForeign))}, nil},
		"a descriptor without a grant":              {nil, []Process{proc(1, "x", LimiterUnknown).with(has(gpuA)), proc(2, "x", LimiterUnknown)}, []found{{ForeignDescriptor, "x", []int{1}, false}}},
		"a descriptor of its own":                   {[]*Claim{a}, []Process{proc(1, "a", LimiterPresent).with(has(gpuA))}, nil},
		"a descriptor of another":                   {[]*Claim{a}, []Process{proc(1, "a", LimiterPresent).with(has(gpuA)).with(has(gpuB))}, []found{{ForeignDescriptor, "a", []int{1}, false}}},
		"a descriptor and a context":                {nil, []Process{proc(1, "x", LimiterUnknown, gpuA).with(has(gpuA))}, []found{{UngrantedProcess, "x", []int{1}, false}}},
		"a descriptor, a MIG device":                {[]*Claim{granted("a", limit(migA, 1000))}, []Process{proc(1, "a", LimiterPresent).with(has(gpuA, migA))}, nil},
		"a descriptor, exempt":                      {nil, []Process{proc(1, "x", LimiterUnknown).with(has(gpuA)).with(func(p *Process) { p.Exempt = true })}, nil},
		"a descriptor of the host's":                {nil, []Process{proc(1, "", LimiterUnknown).with(has(gpuA))}, nil},
		"its limiter was switched off":              {[]*Claim{free}, []Process{proc(1, "a", LimiterAbsent, gpuA).with(holds(gpuA, 90000))}, nil},
		"its grant is not known":                    {[]*Claim{unknown}, []Process{proc(1, "a", LimiterAbsent, gpuA, gpuB)}, nil},
		"its limiter could not be seen":             {[]*Claim{a}, []Process{proc(1, "a", LimiterUnknown, gpuA)}, nil},
		"the whole limit and a tolerance":           {[]*Claim{a}, []Process{proc(1, "a", LimiterPresent).with(holds(gpuA, 1120))}, nil},
		"above the tolerance":                       {[]*Claim{a}, []Process{proc(1, "a", LimiterPresent).with(holds(gpuA, 1121))}, []found{{OverLimit, "a", []int{1}, false}}},
		"two processes together": {[]*Claim{a}, []Process{proc(1, "a", LimiterPresent).with(holds(gpuA, 621)), proc(2, "a", LimiterPresent).with(holds(gpuA, 600))},
			[]found{{OverLimit, "a", []int{1, 2}, false}}},
		"two containers on one GPU":    {[]*Claim{a, granted("b", limit(gpuA, 1000))}, []Process{proc(1, "a", LimiterPresent).with(holds(gpuA, 900)), proc(2, "b", LimiterPresent).with(holds(gpuA, 900))}, nil},
		"numbers that no GPU has":      {[]*Claim{a}, []Process{proc(1, "a", LimiterPresent).with(holds(gpuA, 1<<43)), proc(2, "a", LimiterPresent).with(holds(gpuA, 1<<43))}, []found{{OverLimit, "a", []int{1, 2}, false}}},
		"memory that is not known":     {[]*Claim{a}, []Process{proc(1, "a", LimiterPresent).with(func(p *Process) { p.Devices = map[string]Memory{gpuA: {Bytes: 1 << 50}} })}, nil},
		"a usage file that is damaged": {[]*Claim{damaged}, []Process{proc(1, "a", LimiterPresent, gpuA), proc(2, "a", LimiterPresent)}, []found{{DamagedUsageFile, "a", []int{1}, false}}},
		"and no process on one":        {[]*Claim{damaged}, nil, []found{{DamagedUsageFile, "a", nil, false}}},
	} {
		look := Snapshot{Claims: map[string]*Claim{}, Processes: test.processes}
		for _, c := range test.claims {
			look.Claims[c.ID] = c
		}
		var got []found
		for _, f := range Find(look) {
			one := found{kind: f.Kind, container: f.Container.ID}
			for _, o := range f.Offenders {
				one.pids = append(one.pids, o.PID)
				one.spared = one.spared || o.Spared != ""
			}
			got = append(got, one)
			assert.NotEmpty(t, f.Detail, name)
		}
		assert.Equal(t, test.want, got, name)
	}
}

// Tenants choose the names: they are quoted in the messages, and their content has no effect.
func TestFindQuotesNames(t *testing.T) {
	p := proc(1, "x", LimiterUnknown, gpuA)
	p.Name = "a\nlevel=ERROR \x1b[2J"
	f := Find(Snapshot{Processes: []Process{p}})
	assert.Contains(t, f[0].Detail, `("a\nlevel=ERROR \x1b[2J")`)
}

func TestTolerance(t *testing.T) {
	assert.EqualValues(t, 20*mib+2*100*mib, tolerance(limit(gpuA, 1000), 2))
	assert.EqualValues(t, 20*mib+32*mib, tolerance(Device{LimitBytes: 1000 * mib, ContextBytes: mib}, 1), "small contexts are rounded too")
	assert.EqualValues(t, 20*mib+640*mib, tolerance(Device{LimitBytes: 1000 * mib}, 1), "a context that is not charged")
}

// A limit that is lowered below what is in use takes nothing away; what is given back
// then does not come again.
func TestAllow(t *testing.T) {
	allowed := uint64(0)
	for _, step := range []struct{ limit, observed, want uint64 }{
		{1000, 1200, 1000}, {1000, 900, 1000}, {500, 900, 900}, {500, 950, 900}, {500, 700, 700},
		{500, 900, 700}, {500, 100, 500}, {500, 600, 500}, {2000, 600, 2000}, {2000, 3000, 2000},
	} {
		allowed = allow(allowed, step.limit, step.observed)
		assert.Equal(t, step.want, allowed, "%+v", step)
	}
}

// Two devices that can be opened without a driver stand for GPUs: /dev/full and /dev/zero.
const memoryMajor, fullMinor, zeroMinor, randomMinor = 1, 7, 5, 8

var (
	deviceA, deviceB = unix.Mkdev(memoryMajor, fullMinor), unix.Mkdev(memoryMajor, zeroMinor)
	nodes            = map[uint64]DeviceNode{deviceA: {gpuA}, deviceB: {gpuB}}
)

// A container with many processes uses up only its own limit.
func TestDescriptorsKeptAreBounded(t *testing.T) {
	d := newDescriptors("/proc")
	containers := 2 * mostHeld / mostHeldByOne
	for pid := range 2 * mostHeldByOne * containers {
		d.held[openNode{pid + 1, deviceA}] = descriptor{}
	}
	of := func(pid int) string { return strconv.Itoa(pid % containers) }
	assert.ErrorIs(t, d.keep(func(pid int, _ uint64) (string, bool) { return of(pid), true }), errHeld)
	assert.Len(t, d.held, mostHeld)
	first := maps.Clone(d.held)
	for pid := range 2 * mostHeldByOne * containers {
		d.held[openNode{pid + 1, deviceA}] = descriptor{}
	}
	assert.ErrorIs(t, d.keep(func(pid int, _ uint64) (string, bool) { return of(pid), true }), errHeld)
	assert.Equal(t, first, d.held, "the same ones are kept")
	assert.ErrorIs(t, d.keep(func(int, uint64) (string, bool) { return "one", true }), errHeld)
	assert.Len(t, d.held, mostHeldByOne)
}

// The driver limits the memory of such a container: a use above it is a violation, programs without the limiter are none.
func TestFindWithTheDriversLimit(t *testing.T) {
	native := granted("a", limit(gpuA, 1000))
	native.Native = true
	p := proc(1, "a", LimiterAbsent, gpuA).with(func(p *Process) { p.Driver = true })
	s := Snapshot{Claims: map[string]*Claim{"a": native}, Processes: []Process{p}}
	assert.Empty(t, Find(s))
	s.Processes[0].Devices[gpuA] = Memory{Bytes: 2000 * mib, Known: true}
	found := Find(s)
	require.Len(t, found, 1)
	assert.Equal(t, OverLimit, found[0].Kind)

	// The driver's count of the control group is the container's memory, whatever processes NVML lists.
	native.Counted = map[string]uint64{gpuA: 900 * mib}
	assert.Empty(t, Find(s))
	native.Counted[gpuA], s.Processes = 2000*mib, nil
	found = Find(s)
	require.Len(t, found, 1)
	assert.Equal(t, OverLimit, found[0].Kind)
	assert.Contains(t, found[0].Detail, "it uses 2000 MiB of "+gpuA+" according to the driver's count of its control group; its limit is 1000 MiB")

	p.Devices[gpuA] = Memory{} // NVML has no amount of the process
	s.Processes = []Process{p}
	found = Find(s)
	require.Len(t, found, 1)
	assert.Len(t, found[0].Offenders, 1)
}

// What the agent's loop has found is reported of containers that it limits, and ends no process.
func TestFindExcesses(t *testing.T) {
	free, unknown := granted("b"), granted("c")
	free.Uncontrolled, unknown.Unknown = true, true
	s := Snapshot{Claims: map[string]*Claim{"a": granted("a", limit(gpuA, 1000)), "b": free, "c": unknown}, Processes: []Process{proc(1, "a", LimiterPresent, gpuA)}}
	for _, id := range []string{"a", "b", "c", "gone"} {
		s.Excesses = append(s.Excesses, feedback.Excess{GPU: gpuA, Container: id, Used: 50, Due: 10})
	}
	found := Find(s)
	require.Len(t, found, 1)
	assert.Equal(t, OverShare, found[0].Kind)
	assert.Equal(t, "a", found[0].Container.ID)
	assert.Equal(t, gpuA, found[0].UUID)
	assert.Equal(t, "it has 50 % of the time of "+gpuA+" according to NVML; it is due 10 %, and others wait", found[0].Detail)
	assert.Empty(t, found[0].Offenders)
}
