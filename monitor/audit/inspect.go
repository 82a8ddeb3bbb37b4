package audit

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/procfs"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/limiter/feedback"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/oci"
)

// Number of thorough passes for which results are reused: that a process has the limiter, and that it is in no
// container. Processes on a GPU are always inspected.
const (
	limitedFor   = 1
	strangersFor = 10
)

// Inspector finds the containers, mappings and open GPUs of processes.
type Inspector struct {
	proc procfiles
	// own is the agent's container; empty in a control group namespace, as in pods with version 2: there its processes
	// are in "/" and count as the host's, which are never killed.
	own       string
	owners    *feedback.Owners
	container func(id string) (c Container, exempt, known bool)
	libraries *libraries
	// Nodes returns GPUs by device number (unix.Mkdev); nil: open files are not searched.
	Nodes       func() map[uint64]DeviceNode
	descriptors *descriptors

	pass      int         // number of thorough passes
	strangers map[int]int // PIDs without a container, with the pass until which they are skipped
	mapped    map[orphans.Process]seenMaps
	// suspects had no limiter, or too many capabilities, in the last pass, and are on no GPU.
	suspects map[int]bool

	restTime, mapsTime, holderTime time.Duration
	clock                          func() time.Time
	uptime                         func() time.Duration
	// late: the pass took too long to read more mappings.
	late                   bool
	users, suspected, rest turns
}

const ownContainer = "it is the agent's own container"

// seenMaps are reused before the pass until.
type seenMaps struct {
	mapped
	until int
}

// NewInspector inspects proc (/proc). libraryDir has the installed limiters; container returns a container by ID.
func NewInspector(proc, libraryDir string, container func(id string) (c Container, exempt, known bool)) *Inspector {
	i := &Inspector{
		proc: procfiles{procfs.FS(proc)}, owners: feedback.NewOwners(proc), container: container,
		restTime: restTime, mapsTime: mapsTime, holderTime: holderTime, clock: time.Now, uptime: uptime, libraries: &libraries{dir: libraryDir}, descriptors: newDescriptors(proc),
		strangers: map[int]int{}, mapped: map[orphans.Process]seenMaps{}, suspects: map[int]bool{},
	}
	if text, err := os.ReadFile(filepath.Join(proc, "self/cgroup")); err == nil {
		i.own = parseGroups(string(text), func(string) bool { return false }).container
	}
	return i
}

// Processes returns the processes on a GPU or with one open, and claims' processes that use the driver: of
// these only suspects, if not thorough. With an error the result is incomplete.
func (i *Inspector) Processes(claims map[string]*Claim, devices map[string][]nvidia.Process, thorough bool) ([]Process, error) {
	thorough = thorough || i.rest.unfinished()
	if thorough {
		i.pass++
	}
	on := byProcess(devices)
	var errs []error
	if len(claims) > 0 {
		errs = append(errs, i.libraries.learn())
	}
	all, err := i.proc.All()
	errs = append(errs, err)
	nodes := i.nodes()
	var holding map[int][]uint64
	if len(nodes) > 0 {
		holding, err = i.descriptors.search(all, nodes, thorough, searchTime)
		errs = append(errs, err)
	}
	pids := i.candidates(claims, on, holding, all, thorough)
	files := usageFiles(claims)
	owners := files.Of(i.owners.Find(pids, files.UsageFiles))
	var found []Process
	foreign := map[openNode]string{}
	unread := map[int]error{}
	inspect := func(pid int) {
		suspect := i.suspects[pid]
		delete(i.suspects, pid) // remember adds it again
		owner := owners[pid]
		if owner == "" && on[pid] == nil && holding[pid] == nil {
			i.strangers[pid] = i.pass + strangersFor
			return
		}
		if claim := claims[owner]; !thorough && claim != nil && on[pid] == nil && !suspect &&
			!slices.ContainsFunc(holding[pid], func(device uint64) bool { return !nodes[device].granted(claim) }) {
			return // it has only granted devices open
		}
		p, err := i.process(pid, owner, claims, on[pid])
		if p.Spared != ownContainer {
			p.Open = nodesOf(holding[pid], nodes)
		}
		claim := claims[p.Container.ID]
		if p.Container.ID != "" && !p.Exempt && (claim == nil || !claim.Unknown) {
			for _, device := range holding[pid] {
				if len(p.Open) > 0 && !nodes[device].granted(claim) {
					foreign[openNode{pid, device}] = p.Container.ID
				}
			}
			if claim != nil || len(p.Open) > 0 {
				i.privileges(&p)
			}
		}
		if gone(err) {
			return
		}
		if err != nil && !errors.Is(err, errLate) {
			unread[pid] = fmt.Errorf("process %d: %w", pid, err)
		}
		if p.PID != 0 && (p.Driver || p.Admin || on[pid] != nil || len(p.Open) > 0) {
			found = append(found, p)
		}
	}
	var users, suspects, rest []int
	for _, pid := range pids {
		switch {
		case on[pid] != nil || holding[pid] != nil:
			users = append(users, pid)
		case i.suspects[pid]:
			suspects = append(suspects, pid)
		default:
			rest = append(rest, pid)
		}
	}
	i.inTurn(&i.users, users, owners, true, inspect)
	i.inTurn(&i.suspected, suspects, owners, false, inspect)
	i.inTurn(&i.rest, rest, owners, false, inspect)
	if i.users.unfinished() || i.suspected.unfinished() || i.rest.unfinished() {
		errs = append(errs, errLate)
	}
	for _, pid := range slices.Sorted(maps.Keys(unread)) {
		errs = append(errs, unread[pid])
	}
	errs = append(errs, i.descriptors.keep(func(pid int, device uint64) (string, bool) {
		container, is := foreign[openNode{pid, device}]
		return container, is
	}))
	slices.SortFunc(found, func(a, b Process) int { return cmp.Compare(a.PID, b.PID) })
	i.remember(found, thorough)
	return found, errors.Join(errs...)
}

// restTime bounds a pass for each kind of processes, and mapsTime one process: a tenant can have millions of
// mappings, and the kernel takes microseconds for each.
const restTime, mapsTime = time.Second, time.Second

var errLate = errors.New("reading the mappings of processes took too long and continues in the next pass: processes have very many mappings")

// turns is where a pass ran out of time: the next container, and the next process of each. Empty: it did not.
type turns struct {
	container string
	process   map[string]int
}

func (t *turns) unfinished() bool { return t.process != nil }

// inTurn inspects sorted processes until the time is over, and at least one. The container that has taken the least time is
// next, so that processes with very many mappings delay only their own container. With all it continues without reading
// mappings.
func (i *Inspector) inTurn(t *turns, pids []int, owners map[int]string, all bool, inspect func(pid int)) {
	waiting := map[string][]int{}
	for _, pid := range pids {
		waiting[owners[pid]] = append(waiting[owners[pid]], pid)
	}
	containers := slices.Sorted(maps.Keys(waiting))
	first, _ := slices.BinarySearch(containers, t.container)
	containers = slices.Concat(containers[first:], containers[:first])
	for container, pids := range waiting {
		first, _ := slices.BinarySearch(pids, t.process[container])
		waiting[container] = slices.Concat(pids[first:], pids[:first])
	}
	*t = turns{}
	defer func() { i.late = false }()
	took := map[string]time.Duration{}
	for began, now := i.clock(), i.clock(); len(containers) > 0; {
		container := slices.MinFunc(containers, func(a, b string) int { return cmp.Compare(took[a], took[b]) })
		if now.Sub(began) >= i.restTime && len(took) > 0 && !i.late {
			i.late, t.container, t.process = true, container, map[string]int{}
			for container, pids := range waiting {
				t.process[container] = pids[0]
			}
		}
		if i.late && !all {
			return
		}
		inspect(waiting[container][0])
		if waiting[container] = waiting[container][1:]; len(waiting[container]) == 0 {
			delete(waiting, container)
			containers = slices.DeleteFunc(containers, func(c string) bool { return c == container })
		}
		last := now
		now = i.clock()
		took[container] += now.Sub(last)
	}
}

func (i *Inspector) nodes() map[uint64]DeviceNode {
	if i.Nodes == nil {
		return nil
	}
	return i.Nodes()
}

func byProcess(devices map[string][]nvidia.Process) map[int]map[string]Memory {
	on := map[int]map[string]Memory{}
	for uuid, of := range devices {
		for _, p := range of {
			if on[p.PID] == nil {
				on[p.PID] = map[string]Memory{}
			}
			m := on[p.PID][uuid]
			on[p.PID][uuid] = Memory{Bytes: m.Bytes + p.Bytes, Known: m.Known || p.Known, Graphics: p.Graphics}
		}
	}
	return on
}

func (i *Inspector) candidates(claims map[string]*Claim, on map[int]map[string]Memory, holding map[int][]uint64, all []int, thorough bool) []int {
	pids := slices.AppendSeq(slices.Collect(maps.Keys(on)), maps.Keys(holding))
	switch {
	case len(claims) == 0:
	case !thorough:
		pids = slices.AppendSeq(pids, maps.Keys(i.suspects))
	default:
		for _, pid := range all {
			if until, stranger := i.strangers[pid]; !stranger || until <= i.pass {
				pids = append(pids, pid)
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

func (i *Inspector) process(pid int, owner string, claims map[string]*Claim, devices map[string]Memory) (Process, error) {
	s, dir, err := i.proc.Process(pid)
	if err != nil {
		return Process{}, err
	}
	p := Process{Process: orphans.Process{PID: pid, Start: s.Start}, Name: s.Name, Devices: devices}
	if owner == "" {
		g := i.groupOf(s, dir, func(id string) bool { _, _, known := i.container(id); return known || claims[id] != nil })
		owner = claimOf(g.container, claims)
		if claims[owner] == nil {
			i.ungranted(&p, g)
			return p, nil
		}
	}
	p.Container = i.memberOf(claims[owner], s, dir)
	if owner == i.own || pid == os.Getpid() {
		p.Spared = ownContainer
	}
	if claims[owner].Uncontrolled || claims[owner].Native || claims[owner].Unknown {
		return p, nil
	}
	m, err := i.maps(p.Process, dir, claims[owner])
	p.Driver, p.CUDA, p.Limiter, p.Files = m.driver, m.cuda && !m.others, m.limiter, m.files
	if err != nil && !gone(err) {
		p.Limiter, p.Files = LimiterUnknown, FilesUnknown
		return p, fmt.Errorf("read its mappings: %w", err)
	}
	return p, err
}

// claimOf returns the ID of a container's claim.
func claimOf(container string, claims map[string]*Claim) string {
	if claims[container] == nil && container != "" {
		for id, claim := range claims {
			if claim.member(container) >= 0 {
				return id
			}
		}
	}
	return container
}

// memberOf returns the container of a process with a claim, with the claim's ID.
func (i *Inspector) memberOf(claim *Claim, s procfs.Status, dir string) Container {
	if len(claim.Members) < 2 {
		return claim.Container
	}
	g := i.groupOf(s, dir, func(id string) bool { return claim.member(id) >= 0 })
	at := claim.member(g.container)
	if at < 0 {
		return claim.Container
	}
	of := claim.Members[at]
	of.ID = claim.ID
	return of
}

func (i *Inspector) ungranted(p *Process, g group) {
	c, exempt, known := i.container(g.container)
	switch {
	case g.none():
		return // a process of the host
	case g.container == "":
		c = Container{ID: "of pod " + g.podUID, PodUID: g.podUID}
	case !known:
		c = Container{ID: g.container, PodUID: g.podUID}
	}
	p.Container, p.Exempt = c, exempt
	switch {
	case g.container != "" && g.container == i.own, p.PID == os.Getpid():
		p.Spared = ownContainer
	case !known && g.pod:
		p.Spared = "the agent does not know the namespace of its pod"
	}
}

// A late pass uses an earlier result.
func (i *Inspector) maps(of orphans.Process, dir string, claim *Claim) (mapped, error) {
	seen, ok := i.mapped[of]
	switch {
	case ok && (i.late || seen.until > i.pass):
		return seen.mapped, nil
	case i.late:
		return mapped{}, errLate
	}
	delete(i.mapped, of)
	f, err := os.Open(i.proc.Path(dir, "maps"))
	if err != nil {
		return mapped{}, err
	}
	defer f.Close()
	m, err := scanMaps(timed{f, time.Now().Add(i.mapsTime)}, i.expected(claim))
	if err != nil {
		return m, err
	}
	until := i.pass
	if m.limiter == LimiterPresent && m.files != FilesForeign && m.files != FilesAbsent {
		until += limitedFor
	}
	i.mapped[of] = seenMaps{m, until}
	return m, nil
}

func (i *Inspector) expected(claim *Claim) expected {
	with, made := oci.LibrariesOf(claim.Dir)
	want := expected{
		library: func(f file) Limiter { return i.libraries.judge(f, with, made) },
		// After a restore, the claim's files are newer than the mapped ones.
		unknown: errors.Is(made, oci.ErrUnknownLibraries),
	}
	for path, to := range map[string]*file{limiter.LimitsPath(claim.Dir): &want.limits, limiter.UsagePath(claim.Dir): &want.usage} {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			want.unknown = true // the claim was removed
			continue
		}
		*to = asMapped(st.Dev, st.Ino)
	}
	return want
}

// gone reports whether an error means that a process has ended.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

func (i *Inspector) remember(all []Process, thorough bool) {
	admins := map[string]bool{}
	for _, p := range all {
		first := p.Admin && !admins[p.Container.ID] // one process per container is enough
		if len(p.Devices) == 0 && (p.Driver && p.Limiter != LimiterPresent || first) {
			i.suspects[p.PID] = true
			admins[p.Container.ID] = admins[p.Container.ID] || first
		}
	}
	if !thorough {
		return
	}
	maps.DeleteFunc(i.mapped, func(_ orphans.Process, seen seenMaps) bool { return seen.until < i.pass })
	maps.DeleteFunc(i.strangers, func(_ int, until int) bool { return until <= i.pass })
}

type procfiles struct{ procfs.FS }
