package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/ledger/orphans"
)

// Finding is something wrong in one look.
type Finding struct {
	Kind      Kind
	Container Container
	// UUID is the device of OverLimit.
	UUID string
	// Detail says for people what was found, with numbers.
	Detail string
	// Offenders are the processes that do it.
	Offenders []Offender
}

// Offender is a process that does what is wrong.
type Offender struct {
	orphans.Process
	// Spared says why it is not to be ended; empty: it may be.
	Spared string
	// Devices are those that it uses or has open without a grant, for UngrantedProcess and ForeignDescriptor.
	Devices []string
}

// key is what a finding is the same by from look to look.
type key struct {
	kind            Kind
	container, uuid string
	process         orphans.Process // of HostProcess
}

func (f *Finding) key() key {
	k := key{kind: f.Kind, container: f.Container.ID, uuid: f.UUID}
	if f.Kind == HostProcess {
		k.process = f.Offenders[0].Process
	}
	return k
}

// Find says what is wrong: at most one finding a kind and container (and device, of
// OverLimit), and one a process of the host. Their order is that of the keys.
func Find(l Look) []Finding {
	f := finder{found: map[key]*Finding{}}
	for i := range l.Processes {
		f.process(&l.Processes[i], l.Claims)
	}
	for _, id := range slices.Sorted(maps.Keys(l.Claims)) {
		f.memory(l.Claims[id], l.Processes)
		f.file(l.Claims[id], l.Processes)
		f.tampering(l.Claims[id])
	}
	all := make([]Finding, 0, len(f.order))
	for _, k := range f.order {
		all = append(all, *f.found[k])
	}
	slices.SortStableFunc(all, func(a, b Finding) int { return slices.Index(Kinds, a.Kind) - slices.Index(Kinds, b.Kind) })
	return all
}

type finder struct {
	found map[key]*Finding
	order []key
}

// add notes a finding, or its offender beside the others.
func (f *finder) add(one Finding) {
	k := one.key()
	if of := f.found[k]; of != nil {
		of.Offenders = append(of.Offenders, one.Offenders...)
		return
	}
	f.found[k] = &one
	f.order = append(f.order, k)
}

// process judges one process by itself.
func (f *finder) process(p *Process, claims map[string]*Claim) {
	claim := claims[p.Container.ID]
	one := Finding{Container: p.Container, Offenders: []Offender{{Process: p.Process, Spared: p.Spared}}}
	switch {
	case p.Exempt:
	case p.Container.ID == "":
		if len(p.Devices) == 0 {
			return
		}
		one.Kind, one.Offenders[0].Spared = HostProcess, "it is a process of the host"
		one.Detail = fmt.Sprintf("process %d (%q), which is of no container, is on %s", p.PID, p.Name, uuids(p.Devices))
		f.add(one)
	case claim == nil:
		if len(p.Devices) > 0 {
			f.ungranted(p, p.Devices, "and its container has no grant", one)
			return
		}
		f.open(p, nil, "and its container has no grant")
	case claim.Unknown:
	default:
		f.claimed(p, claim, one)
	}
}

// claimed judges a process of a container that has a grant.
func (f *finder) claimed(p *Process, claim *Claim, one Finding) {
	beyond := maps.Clone(p.Devices)
	maps.DeleteFunc(beyond, func(uuid string, _ Memory) bool { _, granted := claim.device(uuid); return granted })
	if len(beyond) > 0 {
		f.ungranted(p, beyond, "which its container was not granted", one)
	} else {
		f.open(p, claim, "which its container was not granted")
	}
	if p.Admin {
		f.add(Finding{Kind: PrivilegedContainer, Container: p.Container,
			Detail: fmt.Sprintf("process %d (%q) has CAP_SYS_ADMIN: it can replace its limits and reach other GPUs", p.PID, p.Name)})
	}
	if claim.Uncontrolled || !p.Driver && len(p.Devices) == 0 {
		return
	}
	if why, spared := p.foreign(); why != "" {
		one.Kind, one.Detail = ForeignFiles, fmt.Sprintf("process %d (%q) %s", p.PID, p.Name, why)
		one.Offenders[0].Spared = cmp.Or(p.Spared, spared)
		f.add(one)
		return
	}
	one.Kind = NoLimiter
	switch p.Limiter {
	case LimiterAbsent:
		one.Detail = fmt.Sprintf("process %d (%q) uses the driver and has not loaded the limiter", p.PID, p.Name)
		f.add(one)
	case LimiterForeign:
		one.Detail = fmt.Sprintf("process %d (%q) uses the driver, and what it has loaded in the limiter's place is no limiter that is installed on this node", p.PID, p.Name)
		one.Offenders[0].Spared = "the limiter's file may have been removed from the node since"
		f.add(one)
	case LimiterForged:
		one.Detail = fmt.Sprintf("process %d (%q) uses the driver, and the library at the limiter's path is not the file that its container was created with", p.PID, p.Name)
		f.add(one)
	}
}

// open judges the device nodes that a process has open; claim is nil for a container without a grant.
func (f *finder) open(p *Process, claim *Claim, why string) {
	foreign := p.ungrantedOpen(claim)
	if len(foreign) == 0 {
		return
	}
	spared := p.Spared
	if spared == "" && p.Privileged {
		spared = "its container is privileged, and NVML opens all GPUs there"
	}
	f.add(Finding{
		Kind: ForeignDescriptor, Container: p.Container,
		Detail:    fmt.Sprintf("process %d (%q) has the device node of %s open, %s", p.PID, p.Name, strings.Join(foreign, " and "), why),
		Offenders: []Offender{{Process: p.Process, Spared: spared, Devices: foreign}},
	})
}

// ungrantedOpen returns the GPUs that a process has open and its container was not granted.
func (p *Process) ungrantedOpen(claim *Claim) (foreign []string) {
	for _, node := range p.Open {
		if !node.granted(claim) {
			foreign = append(foreign, node[0])
		}
	}
	return foreign
}

// granted says whether a container was granted the GPU or a part of it; claim may be nil.
func (n DeviceNode) granted(claim *Claim) bool {
	return claim != nil && slices.ContainsFunc(n, claim.granted)
}

func (f *finder) ungranted(p *Process, on map[string]Memory, why string, one Finding) {
	one.Kind = UngrantedProcess
	one.Offenders = []Offender{{Process: p.Process, Spared: p.Spared, Devices: slices.Sorted(maps.Keys(on))}}
	one.Detail = fmt.Sprintf("process %d (%q) is on %s, %s", p.PID, p.Name, uuids(on), why)
	f.add(one)
}

// Of a limit, so much more may be seen: what contexts take is charged by a table, in
// which they can be off by a quarter, and drivers round what they give.
const (
	toleratedPart    = 50 // 2 % of the limit
	contextPart      = 4  // a quarter of a context, for each process
	leastContext     = 32 << 20
	unchargedContext = 640 << 20 // where contexts are not charged: a whole one
)

// tolerance is how far above a limit NVML's count is not yet a violation.
func tolerance(d Device, processes int) uint64 {
	context := uint64(unchargedContext)
	if d.ContextBytes > 0 {
		context = max(d.ContextBytes/contextPart, leastContext)
	}
	return d.LimitBytes/toleratedPart + uint64(processes)*context
}

// allow is what a container may have that was allowed so much when it was looked at last
// (0: never): a limit that is lowered takes nothing away (see the limiter), but what is
// given back then does not come again.
func allow(last, limit, observed uint64) uint64 {
	return max(limit, min(last, observed))
}

// memory holds a container to its limits by NVML's count.
func (f *finder) memory(claim *Claim, processes []Process) {
	if claim.Unknown || claim.Uncontrolled {
		return
	}
	for _, d := range claim.Devices {
		one := Finding{Kind: OverLimit, Container: claim.Container, UUID: d.UUID}
		seen, _ := observe(&one, claim.ID, d.UUID, processes)
		tolerated := tolerance(d, len(one.Offenders))
		allowed := max(d.LimitBytes, d.AllowedBytes)
		if seen <= allowed || seen-allowed <= tolerated {
			continue
		}
		one.Detail = fmt.Sprintf("it has %d MiB of %s by NVML's count, and its limit is %d MiB (up to %d MiB more are tolerated)",
			seen>>20, d.UUID, d.LimitBytes>>20, tolerated>>20)
		f.add(one)
	}
}

// observe adds up what a container's processes have of a device, and notes them. It is all
// that there is where known: NVML doesn't always say of each.
func observe(one *Finding, container, uuid string, processes []Process) (seen uint64, known bool) {
	known = true
	for i := range processes {
		p := &processes[i]
		m, on := p.Devices[uuid]
		if p.Container.ID != container || !on {
			continue
		}
		if known = known && m.Known; m.Known {
			seen += min(m.Bytes, 1<<56) // no GPU has that; sums don't overflow
			one.Offenders = append(one.Offenders, Offender{Process: p.Process, Spared: p.Spared})
		}
	}
	return seen, known
}

// file judges a container's usage file. Who of it has spoilt the file nobody can say: its
// processes that are on a GPU answer for it.
func (f *finder) file(claim *Claim, processes []Process) {
	if claim.Damage == "" || claim.Unknown {
		return
	}
	one := Finding{Kind: DamagedUsageFile, Container: claim.Container, Detail: claim.Damage}
	for i := range processes {
		if p := &processes[i]; p.Container.ID == claim.ID && len(p.Devices) > 0 {
			one.Offenders = append(one.Offenders, Offender{Process: p.Process, Spared: p.Spared})
		}
	}
	f.add(one)
}

// uuids names devices.
func uuids(devices map[string]Memory) string {
	text := ""
	for i, uuid := range slices.Sorted(maps.Keys(devices)) {
		if i > 0 {
			text += " and "
		}
		text += uuid
	}
	return text
}
