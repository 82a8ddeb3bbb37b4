package feedback

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/nvidia"
)

// Step is the time between two looks; LongestPause is the longest one, used while no process
// of a container has a GPU open.
const (
	Step         = time.Second
	LongestPause = 3 * time.Second
)

// wantsPart is the part of a step that launches must have waited for a container to
// want more than it has.
const wantsPart = 0.02

// Container is one that has a limits and a usage file.
type Container struct {
	ID string
	// Dir is the directory of its claim.
	Dir string
}

// Config is what a Loop works with.
type Config struct {
	// Containers are those that run now.
	Containers func(context.Context) ([]Container, error)
	// Times says what each process had of each GPU since it was last asked.
	Times func(context.Context) (map[string][]nvidia.ProcessTime, error)
	// Memories says what each process has of each GPU now. Whoever has a GPU open is
	// listed, be it without memory.
	Memories func(context.Context) (map[string][]nvidia.ProcessMemory, error)
	// Owners says which container processes are of, by the containers' usage files.
	Owners func(pids []int, usageFiles map[string]string) map[int]string
	// UnlimitedFloor is the minimum percentage of a GPU's time for a container without a
	// share while others use theirs.
	UnlimitedFloor int
	Log            *slog.Logger
}

// Loop follows the containers of a node.
type Loop struct {
	config  Config
	past    map[string]map[string]Past // by GPU and container
	waited  map[string][]uint64        // by container: what its launches had waited in all, by GPU
	written map[string][]limiter.CoreState
	beyond  residues
	said    string
	use     atomic.Pointer[Use]
}

// New makes a loop.
func New(c Config) *Loop {
	return &Loop{config: c, past: map[string]map[string]Past{}, waited: map[string][]uint64{}, written: map[string][]limiter.CoreState{}, beyond: residues{}}
}

// Run looks and writes until the context ends. Then the containers keep what they were
// last told: a factor and flags that were right; the next agent goes on from there.
func (l *Loop) Run(ctx context.Context) {
	for {
		atWork, err := l.Once(ctx)
		l.say(err)
		pause := Step
		if !atWork {
			pause = LongestPause
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// say logs a failure once, not at every step.
func (l *Loop) say(err error) {
	text := ""
	if err != nil && !errors.Is(err, context.Canceled) {
		text = err.Error()
	}
	if text != l.said && text != "" {
		l.config.Log.Warn("shares of compute time are not corrected for some containers", "error", err)
	}
	l.said = text
}

// member is a container with what was read of it in this step.
type member struct {
	Container
	limits limiter.Limits
	wants  []bool
	states []limiter.CoreState
}

// Once is one step. atWork says whether any process of any container has a GPU open: a
// node where none has is looked at less often, and none of its containers' files are.
func (l *Loop) Once(ctx context.Context) (atWork bool, err error) {
	containers, err := l.config.Containers(ctx)
	if err != nil || len(containers) == 0 {
		l.forget(nil)
		l.use.Store(nil)
		return false, err
	}
	memories, failed := l.config.Memories(ctx)
	var times map[string][]nvidia.ProcessTime
	if anybody(memories) {
		times, err = l.config.Times(ctx)
		failed = errors.Join(failed, err)
	} else {
		times = nobody(memories)
	}
	files := make(map[string]string, len(containers))
	for _, c := range containers {
		files[c.ID] = limiter.UsagePath(c.Dir)
	}
	owners := l.owners(times, memories, files)
	members := map[string]*member{}
	for _, c := range containers {
		if !l.concerned(c.ID, owners) {
			continue
		}
		m, err := l.read(c)
		failed = errors.Join(failed, err)
		if m != nil {
			members[c.ID] = m
			continue
		}
		// Its file can't be read or written. Its time counts as use outside of all shares.
		maps.DeleteFunc(owners, func(_ int, owner string) bool { return owner == c.ID })
	}
	busy := attribute(times, owners)
	l.use.Store(l.use.Load().next(time.Now(), busy, files))
	for gpu := range times {
		l.decide(gpu, members, busy[gpu])
	}
	observed := observe(memories, owners)
	for _, m := range members {
		l.residue(m, observed)
	}
	for _, id := range slices.Sorted(maps.Keys(members)) {
		failed = errors.Join(failed, l.write(members[id]))
	}
	l.forget(members)
	return len(owners) > 0, failed
}

// concerned says whether a container's files are to be looked at: a process of it has a
// GPU, or it was told something that may have to be taken back.
func (l *Loop) concerned(id string, owners map[int]string) bool {
	for _, owner := range owners {
		if owner == id {
			return true
		}
	}
	return slices.ContainsFunc(l.written[id], func(s limiter.CoreState) bool { return s != limiter.CoreState{} })
}

// nobody is the time that processes had of GPUs which none has open.
func nobody(memories map[string][]nvidia.ProcessMemory) map[string][]nvidia.ProcessTime {
	times := make(map[string][]nvidia.ProcessTime, len(memories))
	for gpu := range memories {
		times[gpu] = nil
	}
	return times
}

// anybody says whether a process has a GPU open.
func anybody(memories map[string][]nvidia.ProcessMemory) bool {
	for _, of := range memories {
		if len(of) > 0 {
			return true
		}
	}
	return false
}

// read looks at the files of a container. One without limits is going away.
func (l *Loop) read(c Container) (*member, error) {
	limits, err := limiter.ReadLimits(limiter.LimitsPath(c.Dir))
	if err == nil {
		err = limits.CheckIdentity(c.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("container %s: %w", c.ID, err)
	}
	m := &member{Container: c, limits: limits, wants: make([]bool, len(limits.Devices))}
	if m.states, err = limiter.ReadCores(limiter.LimitsPath(c.Dir)); err != nil {
		return nil, err
	}
	usage, err := limiter.ReadCoreUsage(limiter.UsagePath(c.Dir))
	if err != nil {
		return m, nil // spoilt by its container, which then never wants more
	}
	last := l.waited[c.ID]
	waited := make([]uint64, len(usage))
	for i, u := range usage {
		waited[i] = u.ThrottledNanoseconds
		if i < len(last) && i < len(m.wants) {
			m.wants[i] = waited[i]-last[i] > uint64(wantsPart*float64(Step)) && waited[i] > last[i]
		}
	}
	l.waited[c.ID] = waited
	return m, nil
}

// owners says whose the processes are that NVML knows of.
func (l *Loop) owners(times map[string][]nvidia.ProcessTime, memories map[string][]nvidia.ProcessMemory, files map[string]string) map[int]string {
	var pids []int
	for _, of := range times {
		for _, t := range of {
			pids = append(pids, t.PID)
		}
	}
	for _, of := range memories {
		for _, m := range of {
			pids = append(pids, m.PID)
		}
	}
	slices.Sort(pids)
	return l.config.Owners(slices.Compact(pids), files)
}

// attribute adds up what NVML saw, by GPU and container; processes of no container
// are strangers.
func attribute(times map[string][]nvidia.ProcessTime, owners map[int]string) map[string]map[string]float64 {
	busy := make(map[string]map[string]float64, len(times))
	for gpu, of := range times {
		busy[gpu] = map[string]float64{}
		for _, t := range of {
			id := owners[t.PID] // or the stranger
			busy[gpu][id] = min(100, busy[gpu][id]+t.Percent)
		}
	}
	return busy
}

// decide makes one step on a GPU, into the members' states.
func (l *Loop) decide(gpu string, members map[string]*member, busy map[string]float64) {
	var tenants []Tenant
	for _, id := range slices.Sorted(maps.Keys(members)) {
		m := members[id]
		if i := m.gpu(gpu); i >= 0 {
			tenants = append(tenants, Tenant{ID: id, Limit: m.limits.Devices[i], Busy: busy[id], Wants: m.wants[i]})
		}
	}
	next, states := Decide(l.past[gpu], tenants, busy[stranger], float64(l.config.UnlimitedFloor))
	l.past[gpu] = next
	for id, s := range states {
		now := &members[id].states[members[id].gpu(gpu)]
		s.ResidueBytes = now.ResidueBytes
		*now = s
	}
}

func (m *member) gpu(uuid string) int {
	return slices.IndexFunc(m.limits.Devices, func(d limiter.DeviceLimit) bool { return d.UUID == uuid })
}

// write tells a container what has changed.
func (l *Loop) write(m *member) error {
	if slices.Equal(l.written[m.ID], m.states) {
		return nil
	}
	if err := limiter.UpdateCores(m.Dir, m.states); err != nil {
		return err
	}
	if _, known := l.written[m.ID]; !known { // the last agent may have been killed half-way
		if err := limiter.Wake(m.Dir); err != nil {
			return err
		}
	}
	l.written[m.ID] = m.states
	return nil
}

// forget drops what is known of containers that are gone.
func (l *Loop) forget(members map[string]*member) {
	maps.DeleteFunc(l.waited, func(id string, _ []uint64) bool { return members[id] == nil })
	maps.DeleteFunc(l.beyond, func(id string, _ map[string][]uint64) bool { return members[id] == nil })
	maps.DeleteFunc(l.written, func(id string, _ []limiter.CoreState) bool { return members[id] == nil })
}
