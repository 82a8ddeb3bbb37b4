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

	"github.com/gpuslice/gpuslice/internal/logonce"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/nvidia"
)

// Step is the time between two steps; LongestPause while no container's process has a GPU open.
const (
	Step         = time.Second
	LongestPause = 3 * time.Second
)

// stranger is the ID for processes without a claim.
const stranger = ""

type Container struct {
	ID string
	// Dir is the claim's directory.
	Dir string
	// Members are the containers that have the claim in common, if it is such a claim; then ID is the claim's.
	Members []string
	// Limited are the GPUs on which the driver limits the memory of the container's control group.
	Limited []string
}

type Config struct {
	Containers func(context.Context) ([]Container, error)
	// Times returns the GPU time of each process since the last call.
	Times func(context.Context) (map[string][]nvidia.ProcessTime, error)
	// Sources returns where the time comes from, by GPU; optional: all of it from Times.
	Sources func() map[string]nvidia.TimeSource
	// Peers returns the containers with turns, by GPU and container; optional.
	Peers    func(context.Context) (map[string]map[string]Peer, error)
	Memories func(context.Context) (map[string][]nvidia.ProcessMemory, error)
	// Counted returns the driver's count of a control group's memory by GPU, for containers with Limited; optional. A GPU that is
	// missing has the sum of Memories.
	Counted func(context.Context, Container) (map[string]uint64, error)
	// Owners returns the containers of processes (see Owners.Find).
	Owners func(pids []int, usageFiles map[string]string) map[int]string
	Log    *slog.Logger
}

// Loop measures the use of a node's containers.
type Loop struct {
	config  Config
	written map[string][]uint64 // residues by container
	beyond  residues
	charged busyTimes
	excess  excesses
	beyonds atomic.Pointer[[]Excess]
	now     func() time.Time
	problem logonce.Problem
	use     atomic.Pointer[Use]
}

func New(c Config) *Loop {
	return &Loop{config: c, written: map[string][]uint64{}, beyond: residues{}, now: time.Now}
}

// Run runs until ctx ends. Containers keep the last residue.
func (l *Loop) Run(ctx context.Context) {
	periodic.Vary(ctx, nil, func() time.Duration {
		atWork, err := l.Once(ctx)
		l.problem.Warn(l.config.Log, "the use of some containers is not measured", err)
		if atWork {
			return Step
		}
		return LongestPause
	})
}

// Excesses returns those of the last step. It is safe for concurrent use.
func (l *Loop) Excesses() []Excess {
	if found := l.beyonds.Load(); found != nil {
		return *found
	}
	return nil
}

type member struct {
	Container
	limits  limiter.Limits
	residue []uint64
}

// Once is one step. atWork reports whether a process has a GPU open; otherwise no file is read.
func (l *Loop) Once(ctx context.Context) (atWork bool, err error) {
	containers, err := l.config.Containers(ctx)
	if err != nil || len(containers) == 0 {
		l.forget(nil)
		l.use.Store(nil)
		l.charged, l.excess = nil, nil
		l.beyonds.Store(nil)
		return false, err
	}
	memories, failed := l.config.Memories(ctx)
	times := make(map[string][]nvidia.ProcessTime, len(memories))
	inUse := false
	for gpu, of := range memories {
		times[gpu] = nil
		inUse = inUse || len(of) > 0
	}
	if inUse {
		times, err = l.config.Times(ctx)
		failed = errors.Join(failed, err)
	}
	claims := NewClaims(len(containers))
	for _, c := range containers {
		claims.Add(c.ID, limiter.UsagePath(c.Dir), c.Members)
	}
	owners := claims.Of(l.owners(times, memories, claims.UsageFiles))
	active := map[string]bool{}
	for _, owner := range owners {
		active[owner] = true
	}
	counted, err := l.counted(ctx, containers)
	failed = errors.Join(failed, err)
	for id, of := range counted {
		for _, bytes := range of {
			if bytes > 0 {
				active[id] = true
			}
		}
	}
	members := map[string]*member{}
	for _, c := range containers {
		if !l.concerned(c.ID, active) {
			continue
		}
		m, err := l.read(c)
		failed = errors.Join(failed, err)
		if m != nil {
			members[c.ID] = m
			continue
		}
		// Its time counts as use without a claim.
		maps.DeleteFunc(owners, func(_ int, owner string) bool { return owner == c.ID })
	}
	busy := attribute(times, owners)
	now := l.now()
	if l.config.Peers != nil && inUse {
		peers, err := l.config.Peers(ctx)
		failed = errors.Join(failed, err)
		found := l.excess.step(limiter.Now(), busy, peers)
		l.beyonds.Store(&found)
	} else {
		l.excess = nil
		l.beyonds.Store(nil)
	}
	failed = errors.Join(failed, l.measure(now, busy, members))
	l.use.Store(l.use.Load().next(now, busy, claims.UsageFiles))
	observed := observe(memories, owners)
	for _, m := range members {
		l.residue(m, observed, counted[m.ID])
	}
	for _, id := range slices.Sorted(maps.Keys(members)) {
		failed = errors.Join(failed, l.write(members[id]))
	}
	l.forget(members)
	return len(active) > 0, failed
}

// counted are the driver's counts, by container.
func (l *Loop) counted(ctx context.Context, containers []Container) (all map[string]map[string]uint64, failed error) {
	all = map[string]map[string]uint64{}
	for _, c := range containers {
		if l.config.Counted == nil || len(c.Limited) == 0 {
			continue
		}
		of, err := l.config.Counted(ctx, c)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("container %s: %w", c.ID, err))
		}
		all[c.ID] = of
	}
	return all, failed
}

// concerned reports whether a container's files must be read: it has a GPU open, or a residue to reset.
func (l *Loop) concerned(id string, active map[string]bool) bool {
	return active[id] || slices.ContainsFunc(l.written[id], func(bytes uint64) bool { return bytes > 0 })
}

func (l *Loop) read(c Container) (*member, error) {
	limits, err := limiter.ReadLimitsOf(c.Dir, c.ID)
	if err != nil {
		return nil, fmt.Errorf("container %s: %w", c.ID, err)
	}
	m := &member{Container: c, limits: limits}
	if m.residue, err = limiter.ReadResidue(limiter.LimitsPath(c.Dir)); err != nil {
		return nil, err
	}
	return m, nil
}

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

func attribute(times map[string][]nvidia.ProcessTime, owners map[int]string) map[string]map[string]float64 {
	busy := make(map[string]map[string]float64, len(times))
	for gpu, of := range times {
		busy[gpu] = map[string]float64{}
		for _, t := range of {
			id := owners[t.PID] // or stranger
			busy[gpu][id] = min(100, busy[gpu][id]+t.Percent)
		}
	}
	return busy
}

func (l *Loop) write(m *member) error {
	if slices.Equal(l.written[m.ID], m.residue) {
		return nil
	}
	if err := limiter.UpdateResidue(m.Dir, m.residue); err != nil {
		return err
	}
	if _, known := l.written[m.ID]; !known { // the last agent may have been killed before
		if err := limiter.Wake(m.Dir); err != nil {
			return err
		}
	}
	l.written[m.ID] = m.residue
	return nil
}

func (l *Loop) forget(members map[string]*member) {
	maps.DeleteFunc(l.beyond, func(id string, _ map[string][]uint64) bool { return members[id] == nil })
	maps.DeleteFunc(l.written, func(id string, _ []uint64) bool { return members[id] == nil })
}
