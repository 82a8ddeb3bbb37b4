package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/ledger/orphans"
)

type Finding struct {
	Kind      Kind
	Container Container
	UUID      string
	Detail    string
	Offenders []Offender
}

// Offender is a process that causes a finding.
type Offender struct {
	orphans.Process
	// Spared is the reason not to kill it; empty: none.
	Spared string
	// Devices are those that it uses or has open without a grant.
	Devices []string
}

type key struct {
	kind            Kind
	container, uuid string
	process         orphans.Process // only of HostProcess
}

func (f *Finding) key() key {
	k := key{kind: f.Kind, container: f.Container.ID, uuid: f.UUID}
	if f.Kind == HostProcess {
		k.process = f.Offenders[0].Process
	}
	return k
}

// Find returns one problem per kind and container (and device, for OverLimit), and per process of the host.
func Find(l Snapshot) []Finding {
	f := finder{found: map[key]*Finding{}}
	for i := range l.Processes {
		f.process(&l.Processes[i], l.Claims)
	}
	for _, id := range slices.Sorted(maps.Keys(l.Claims)) {
		f.memory(l.Claims[id], l.Processes)
		f.file(l.Claims[id], l.Processes)
		f.tampering(l.Claims[id])
	}
	for _, e := range l.Excesses {
		if claim := l.Claims[e.Container]; claim != nil && !claim.Unknown && !claim.Uncontrolled {
			f.add(Finding{Kind: OverShare, Container: claim.Container, UUID: e.GPU,
				Detail: fmt.Sprintf("it has %.0f %% of the time of %s according to NVML; it is due %.0f %%, and others wait", e.Used, e.GPU, e.Due)})
		}
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

func (f *finder) add(one Finding) {
	k := one.key()
	if of := f.found[k]; of != nil {
		of.Offenders = append(of.Offenders, one.Offenders...)
		return
	}
	f.found[k] = &one
	f.order = append(f.order, k)
}

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
		one.Detail = fmt.Sprintf("process %d (%q) runs outside of containers and uses %s", p.PID, p.Name, uuids(p.Devices))
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

func (f *finder) claimed(p *Process, claim *Claim, one Finding) {
	beyond := maps.Clone(p.Devices)
	maps.DeleteFunc(beyond, func(uuid string, _ Memory) bool { return claim.granted(uuid) })
	if len(beyond) > 0 {
		f.ungranted(p, beyond, "which its container was not granted", one)
	} else {
		f.open(p, claim, "which its container was not granted")
	}
	if p.Admin && !claim.Process {
		f.add(Finding{Kind: PrivilegedContainer, Container: p.Container,
			Detail: fmt.Sprintf("process %d (%q) has CAP_SYS_ADMIN: it can replace its limits and reach other GPUs", p.PID, p.Name)})
	}
	if claim.Uncontrolled || claim.Native || !p.Driver && len(p.Devices) == 0 {
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
		one.Detail = fmt.Sprintf("process %d (%q) uses the driver, and the library at the limiter's path is not installed on this node", p.PID, p.Name)
		one.Offenders[0].Spared = "the limiter's file may have been removed from the node"
		f.add(one)
	case LimiterForged:
		one.Detail = fmt.Sprintf("process %d (%q) uses the driver, and the library at the limiter's path is not the file that its container was created with", p.PID, p.Name)
		f.add(one)
	}
}

// claim is nil for a container without a grant.
func (f *finder) open(p *Process, claim *Claim, why string) {
	foreign := p.ungrantedOpen(claim)
	if len(foreign) == 0 {
		return
	}
	spared := p.Spared
	switch {
	case spared != "":
	case claim != nil && claim.Process:
		spared = "it is a command of the host, and NVML opens all GPUs there"
	case p.Privileged:
		spared = "its container is privileged, and NVML opens all GPUs there"
	}
	f.add(Finding{
		Kind: ForeignDescriptor, Container: p.Container,
		Detail:    fmt.Sprintf("process %d (%q) has the device node of %s open, %s", p.PID, p.Name, strings.Join(foreign, " and "), why),
		Offenders: []Offender{{Process: p.Process, Spared: spared, Devices: foreign}},
	})
}

func (p *Process) ungrantedOpen(claim *Claim) (foreign []string) {
	for _, node := range p.Open {
		if !node.granted(claim) {
			foreign = append(foreign, node[0])
		}
	}
	return foreign
}

// claim can be nil.
func (n DeviceNode) granted(claim *Claim) bool {
	return claim != nil && slices.ContainsFunc(n, claim.granted)
}

func (f *finder) ungranted(p *Process, on map[string]Memory, why string, one Finding) {
	one.Kind = UngrantedProcess
	one.Offenders = []Offender{{Process: p.Process, Spared: p.Spared, Devices: slices.Sorted(maps.Keys(on))}}
	one.Detail = fmt.Sprintf("process %d (%q) uses %s, %s", p.PID, p.Name, uuids(on), why)
	f.add(one)
}

// Tolerances: contexts are charged by a table that can be off by a quarter, and drivers round up.
const (
	toleratedPart    = 50 // 2 % of the limit
	contextPart      = 4  // a quarter of a context per process
	leastContext     = 32 << 20
	unchargedContext = 640 << 20 // a whole context, if contexts are not charged
)

func tolerance(d Device, processes int) uint64 {
	context := uint64(unchargedContext)
	if d.ContextBytes > 0 {
		context = max(d.ContextBytes/contextPart, leastContext)
	}
	return d.LimitBytes/toleratedPart + uint64(processes)*context
}

// allow: a lowered limit takes no memory away, but freed memory can't be allocated again. last is 0 at first.
func allow(last, limit, observed uint64) uint64 {
	return max(limit, min(last, observed))
}

func (f *finder) memory(claim *Claim, processes []Process) {
	if claim.Unknown || claim.Uncontrolled {
		return
	}
	for _, d := range claim.Devices {
		one := Finding{Kind: OverLimit, Container: claim.Container, UUID: d.UUID}
		seen, _ := observe(&one, claim, d.UUID, processes)
		tolerated := tolerance(d, len(one.Offenders))
		allowed := max(d.LimitBytes, d.AllowedBytes)
		if seen <= allowed || seen-allowed <= tolerated {
			continue
		}
		by := "NVML"
		if _, counted := claim.Counted[d.UUID]; counted {
			by = "the driver's count of its control group"
		}
		one.Detail = fmt.Sprintf("it uses %d MiB of %s according to %s; its limit is %d MiB (tolerance %d MiB)",
			seen>>20, d.UUID, by, d.LimitBytes>>20, tolerated>>20)
		f.add(one)
	}
}

// observe returns a container's memory of a device, and adds offenders. NVML may not know all of it.
func observe(one *Finding, claim *Claim, uuid string, processes []Process) (seen uint64, known bool) {
	counted, isCounted := claim.Counted[uuid]
	known = true
	for i := range processes {
		p := &processes[i]
		m, on := p.Devices[uuid]
		if p.Container.ID != claim.ID || !on {
			continue
		}
		known = known && m.Known
		if m.Known {
			seen += min(m.Bytes, 1<<56) // avoids an overflow
		}
		if m.Known || isCounted {
			one.Offenders = append(one.Offenders, Offender{Process: p.Process, Spared: p.Spared})
		}
	}
	if isCounted {
		return min(counted, 1<<56), true
	}
	return seen, known
}

// Which process damaged the file is unknown: all those on a GPU are offenders.
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

func uuids(devices map[string]Memory) string {
	return strings.Join(slices.Sorted(maps.Keys(devices)), " and ")
}
