package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/gpu"
	"github.com/gpuslice/gpuslice/monitor/cores"
	"github.com/gpuslice/gpuslice/oci/claimed"
)

// For how many thorough looks what was found out of a process is believed: that it has the
// limiter (an exec may lose it), and that it is of no container and on no card (a runtime's
// joins one, and numbers come again). Whoever is on a card is looked at whatever was found.
const (
	limitedFor   = 1
	strangersFor = 10
)

// Inspector finds out whose processes are and what they have mapped.
type Inspector struct {
	proc procfs
	host string // our own PID namespace, which is to be the machine's
	// own is the container that this runs in. It is empty where this runs in none, and where
	// it has a control group namespace of its own, as pods have by version 2. There the
	// processes of its container are in "/", by which they are of no container, and so the
	// host's, whom nobody ends; others' groups lead up from it ("/../").
	own       string
	owners    *cores.Owners
	container func(id string) (c Container, exempt, known bool)
	libraries *libraries

	look      int         // how many were thorough
	strangers map[int]int // by number, the look until which one is of no interest
	mapped    map[claimed.Process]seenMaps
	suspects  map[int]bool // on no card, without the limiter in the last look
}

type seenMaps struct {
	mapped
	until int
}

// NewInspector looks at the processes in proc, which is /proc. libraryDir is where the
// limiter is installed; container tells of a container that may have no grant.
func NewInspector(proc, libraryDir string, container func(id string) (c Container, exempt, known bool)) *Inspector {
	i := &Inspector{
		proc: procfs(proc), owners: cores.NewOwners(proc), container: container,
		libraries: &libraries{dir: libraryDir, known: map[string]uint64{}, files: map[file]bool{}},
		strangers: map[int]int{}, mapped: map[claimed.Process]seenMaps{}, suspects: map[int]bool{},
	}
	i.host, _ = i.proc.namespace("self")
	if text, err := os.ReadFile(filepath.Join(proc, "self/cgroup")); err == nil {
		i.own = parseGroups(string(text), func(string) bool { return false }).container
	}
	return i
}

// Processes are those that are on a device and, of claims' containers, those that use the
// driver: of the latter one that is thorough finds all, another those that were without the limiter
// the last time. The error is of what could not be looked at; what could be is there.
func (i *Inspector) Processes(claims map[string]*Claim, devices map[string][]gpu.Process, thorough bool) ([]Process, error) {
	if thorough {
		i.look++
	}
	on := byProcess(devices)
	errs := []error{i.learn(claims)}
	pids, err := i.candidates(claims, on, thorough)
	errs = append(errs, err)
	owners := i.owners.Find(pids, usageFiles(claims))
	var all []Process
	for _, pid := range pids {
		owner := owners[pid]
		if owner == "" && on[pid] == nil {
			i.strangers[pid] = i.look + strangersFor
			continue
		}
		p, err := i.process(pid, owner, claims, on[pid])
		switch {
		case err == nil && (p.Driver || on[pid] != nil):
			all = append(all, p)
		case err != nil && !gone(err):
			errs = append(errs, fmt.Errorf("process %d: %w", pid, err))
		}
	}
	i.remember(all, thorough)
	return all, errors.Join(errs...)
}

func (i *Inspector) learn(claims map[string]*Claim) error {
	if len(claims) == 0 {
		return nil
	}
	return i.libraries.learn()
}

// byProcess turns the devices' lists around.
func byProcess(devices map[string][]gpu.Process) map[int]map[string]Memory {
	on := map[int]map[string]Memory{}
	for uuid, of := range devices {
		for _, p := range of {
			if on[p.PID] == nil {
				on[p.PID] = map[string]Memory{}
			}
			m := on[p.PID][uuid]
			on[p.PID][uuid] = Memory{Bytes: m.Bytes + p.Bytes, Known: m.Known || p.Known}
		}
	}
	return on
}

// candidates are the processes to be looked at, in order: those on a device and the
// suspects or, thoroughly, all that are not known to be strangers.
func (i *Inspector) candidates(claims map[string]*Claim, on map[int]map[string]Memory, thorough bool) ([]int, error) {
	var pids []int
	for pid := range on {
		pids = append(pids, pid)
	}
	var err error
	switch {
	case len(claims) == 0:
	case !thorough:
		for pid := range i.suspects {
			if on[pid] == nil {
				pids = append(pids, pid)
			}
		}
	default:
		var others []int
		others, err = i.proc.all()
		for _, pid := range others {
			if until, stranger := i.strangers[pid]; on[pid] == nil && (!stranger || until <= i.look) {
				pids = append(pids, pid)
			}
		}
	}
	slices.Sort(pids)
	return pids, err
}

// process finds out all of one.
func (i *Inspector) process(pid int, owner string, claims map[string]*Claim, devices map[string]Memory) (Process, error) {
	s, dir, err := i.proc.process(pid)
	if err != nil {
		return Process{}, err
	}
	p := Process{Process: claimed.Process{PID: pid, Start: s.start}, Name: s.name, Devices: devices}
	if owner == "" {
		g := i.groupOf(s, dir, func(id string) bool { _, _, known := i.container(id); return known || claims[id] != nil })
		owner = g.container
		if claims[owner] == nil {
			i.ungranted(&p, g)
			return p, nil
		}
	}
	p.Container = claims[owner].Container
	if owner == i.own || pid == os.Getpid() {
		p.Spared = "it is the agent's own container"
	}
	if claims[owner].Uncontrolled || claims[owner].Unknown {
		return p, nil
	}
	m, err := i.maps(p.Process, dir)
	p.Driver, p.Limiter = m.driver, m.limiter
	if err != nil && !gone(err) {
		p.Limiter = LimiterUnknown
		return p, fmt.Errorf("what it has mapped: %w", err)
	}
	return p, err
}

// ungranted says of a process that no claim's is whose it is.
func (i *Inspector) ungranted(p *Process, g group) {
	c, exempt, known := i.container(g.container)
	switch {
	case g.none():
		return // the host's
	case g.container == "":
		c = Container{ID: "of pod " + g.podUID, PodUID: g.podUID}
	case !known:
		c = Container{ID: g.container, PodUID: g.podUID}
	}
	p.Container, p.Exempt = c, exempt
	switch {
	case g.container != "" && g.container == i.own, p.PID == os.Getpid():
		p.Spared = "it is the agent's own container"
	case !known && g.pod:
		p.Spared = "the namespace of its pod is not known to the agent"
	}
}

// maps looks at what a process has mapped.
func (i *Inspector) maps(of claimed.Process, dir string) (mapped, error) {
	if seen, ok := i.mapped[of]; ok && seen.until > i.look {
		return seen.mapped, nil
	}
	delete(i.mapped, of)
	f, err := os.Open(filepath.Join(string(i.proc), dir, "maps"))
	if err != nil {
		return mapped{}, err
	}
	defer f.Close()
	m, err := scanMaps(f, func(f file) bool { return i.libraries.files[f] })
	if err == nil && m.limiter == LimiterPresent {
		i.mapped[of] = seenMaps{m, i.look + limitedFor}
	}
	return m, err
}

// gone says whether an error is that of a process that has ended.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// remember notes whom to look at again, and drops what is known of processes that are
// gone.
func (i *Inspector) remember(all []Process, thorough bool) {
	clear(i.suspects)
	for _, p := range all {
		if len(p.Devices) == 0 && p.Limiter != LimiterPresent {
			i.suspects[p.PID] = true
		}
	}
	if !thorough {
		return
	}
	maps.DeleteFunc(i.mapped, func(_ claimed.Process, seen seenMaps) bool { return seen.until < i.look })
	maps.DeleteFunc(i.strangers, func(_ int, until int) bool { return until <= i.look })
}
