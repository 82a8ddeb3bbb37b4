package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/gpu"
	"github.com/gpuslice/gpuslice/monitor/cores"
	"github.com/gpuslice/gpuslice/oci/claimed"
)

// remembered is for how many looks what was found out of a process is believed: one that
// has the limiter (until an exec), and one that is of no container and on no card (a
// runtime's may join a container).
const remembered = 6

// Inspector finds out whose processes are and what they have mapped.
type Inspector struct {
	proc      procfs
	host      string // our own PID namespace, which is to be the machine's
	own       string // the container that this runs in; empty: none
	owners    *cores.Owners
	container func(id string) (c Container, exempt, known bool)
	libraries *libraries

	look      int
	strangers map[int]int // by number, the look until which one is of no interest
	mapped    map[claimed.Process]seenMaps
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
		strangers: map[int]int{}, mapped: map[claimed.Process]seenMaps{},
	}
	i.host, _ = i.proc.namespace("self")
	if text, err := os.ReadFile(filepath.Join(proc, "self/cgroup")); err == nil {
		i.own = parseGroups(string(text), func(string) bool { return false }).container
	}
	return i
}

// Processes are those of the claims' containers that use the driver or have no limiter,
// and all that are on a device. The error is of what could not be looked at; what could
// be is there.
func (i *Inspector) Processes(claims map[string]*Claim, devices map[string][]gpu.Process) ([]Process, error) {
	i.look++
	on := byProcess(devices)
	errs := []error{i.learn(claims)}
	pids, err := i.candidates(claims, on)
	errs = append(errs, err)
	owners := i.owners.Find(pids, usageFiles(claims))
	var all []Process
	for _, pid := range pids {
		owner := owners[pid]
		if owner == "" && on[pid] == nil {
			i.strangers[pid] = i.look + remembered
			continue
		}
		p, err := i.process(pid, owner, claims, on[pid])
		if err == nil {
			all = append(all, p)
		} else if !gone(err) {
			errs = append(errs, fmt.Errorf("process %d: %w", pid, err))
		}
	}
	i.forget(pids)
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

// candidates are the processes to be looked at, in order: those on a device and, where
// there are claims, all that are not known to be strangers.
func (i *Inspector) candidates(claims map[string]*Claim, on map[int]map[string]Memory) ([]int, error) {
	var pids []int
	for pid := range on {
		pids = append(pids, pid)
	}
	var err error
	if len(claims) > 0 {
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
		i.mapped[of] = seenMaps{m, i.look + remembered}
	}
	return m, err
}

// gone says whether an error is that of a process that has ended.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// forget drops what is known of processes that are gone, and of strangers from time to
// time.
func (i *Inspector) forget(pids []int) {
	for p := range i.mapped {
		if _, there := slices.BinarySearch(pids, p.PID); !there {
			delete(i.mapped, p)
		}
	}
	for pid, until := range i.strangers {
		if until <= i.look {
			delete(i.strangers, pid)
		}
	}
}
