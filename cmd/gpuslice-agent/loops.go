package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/internal/logonce"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/limiter/feedback"
	"github.com/gpuslice/gpuslice/monitor/audit"
	"github.com/gpuslice/gpuslice/monitor/nodeview"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/oci"
)

func coreLoop(ledger *ledger.Ledger, inventory *nvidia.Cache, limits *nativeLimits, stateDir string, floor int, turn *progress, log *slog.Logger) *feedback.Loop {
	return feedback.New(feedback.Config{
		Containers: func(ctx context.Context) ([]feedback.Container, error) {
			turn.tick()
			snapshot, err := ledger.Snapshot(ctx)
			if err != nil {
				return nil, err
			}
			return coreContainers(snapshot, ledger.Dir), nil
		},
		Times: func(ctx context.Context) (map[string][]nvidia.ProcessTime, error) {
			defer turn.waitForNVML()()
			return inventory.ProcessTimes(ctx)
		},
		Sources: inventory.TimeSources,
		Peers: func(ctx context.Context) (map[string]map[string]feedback.Peer, error) {
			snapshot, err := ledger.Snapshot(ctx)
			if err != nil {
				return nil, err
			}
			return nodeview.Peers(snapshot, snapshot.Turns(stateDir), floor), nil
		},
		Memories: func(ctx context.Context) (map[string][]nvidia.ProcessMemory, error) {
			defer turn.waitForNVML()()
			return inventory.ProcessMemories(ctx)
		},
		Counted: func(ctx context.Context, c feedback.Container) (map[string]uint64, error) {
			defer turn.waitForNVML()()
			return limits.counted(ctx, c.Dir, c.Limited)
		},
		Owners: feedback.NewOwners("/proc").Find,
		Log:    log,
	})
}

func coreContainers(s *ledger.Snapshot, dir func(id string) string) []feedback.Container {
	var all []feedback.Container
	for _, claim := range s.Claims() {
		c := feedback.Container{ID: claim.ContainerID, Dir: dir(claim.ContainerID), Limited: limited(claim)}
		for _, m := range claim.Members {
			c.Members = append(c.Members, m.ContainerID)
		}
		all = append(all, c)
	}
	return all
}

// holdsOf finds kernels that hold a GPU while other containers wait; events can be nil.
func holdsOf(store *ledger.Ledger, stateDir string, floor int, turn *progress, events audit.Events, log *slog.Logger) *feedback.Holds {
	return feedback.NewHolds(feedback.HoldsConfig{
		Peers: func(ctx context.Context) (map[string]map[string]feedback.Peer, error) {
			turn.tick()
			snapshot, err := store.Snapshot(ctx)
			if err != nil {
				return nil, err
			}
			return nodeview.Peers(snapshot, snapshot.Turns(stateDir), floor), nil
		},
		Began: func(h feedback.Hold) {
			log.Warn("a kernel holds a GPU beyond its container's share while others wait", "gpu", h.GPU, "id", h.Container, "since", h.Since, "waiting", len(h.Waiting))
			if events != nil {
				reportHold(store, events, h, log)
			}
		},
		Log: log,
	})
}

const heldReason = "GPUHeld"

func reportHold(store *ledger.Ledger, events audit.Events, h feedback.Hold, log *slog.Logger) {
	snapshot, err := store.Snapshot(context.Background())
	if err != nil {
		log.Warn("no event for a kernel that holds a GPU", "error", err)
		return
	}
	for _, c := range snapshot.Claims() {
		if c.ContainerID == h.Container && c.PodName != "" {
			events.Warn(audit.Container{ID: c.ContainerID, Namespace: c.PodNamespace, Pod: c.PodName, PodUID: c.PodUID, Name: c.Container}, heldReason,
				fmt.Sprintf("a kernel of the container holds GPU %s beyond the container's share, and %d others wait: launch shorter kernels, because a kernel can't be interrupted", h.GPU, len(h.Waiting)))
		}
	}
}

const holdInterval = time.Second

func holdFiles(ledger *ledger.Ledger, stateDir string, holder *limiter.Holder, turn *progress, log *slog.Logger) func(context.Context) {
	return func(ctx context.Context) {
		defer holder.Close()
		var problem logonce.Problem
		periodic.Vary(ctx, nil, func() time.Duration {
			turn.tick()
			err := holder.Follow(func() (map[string]string, error) { return claimDirs(ctx, ledger) })
			err = errors.Join(err, holder.FollowTurns(stateDir))
			if ctx.Err() == nil {
				problem.Warn(log, "failed to open files of containers; retrying", err)
			}
			return holdInterval
		})
	}
}

func claimDirs(ctx context.Context, ledger *ledger.Ledger) (map[string]string, error) {
	snapshot, err := ledger.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	dirs := make(map[string]string, len(snapshot.Entries))
	for _, e := range snapshot.Entries {
		dirs[e.ContainerID] = ledger.Dir(e.ContainerID)
	}
	return dirs, nil
}

type libraryPruner struct {
	dir, stateDir string
	cdiSpecDirs   []string
	settings      oci.Settings
	ledger        *ledger.Ledger
	// ready returns nil if the ledger has all existing containers.
	ready    func() error
	interval time.Duration
	log      *slog.Logger
}

func (p *libraryPruner) run(ctx context.Context) {
	periodic.Vary(ctx, nil, func() time.Duration {
		if p.ready() == nil {
			p.prune(ctx)
		}
		return p.interval
	})
}

func (p *libraryPruner) prune(ctx context.Context) {
	removed, err := p.once(ctx)
	if err != nil && ctx.Err() == nil {
		p.log.Warn("removing old libraries of the limiter failed", "directory", p.dir, "error", err)
	}
	if len(removed) > 0 {
		p.log.Info("unused libraries removed", "directory", p.dir, "libraries", removed)
	}
}

func (p *libraryPruner) once(ctx context.Context) (removed []string, err error) {
	// Used by the runtime wrapper and by CDI specs.
	mentions := []string{filepath.Join(p.stateDir, "limiter.json")}
	for _, dir := range p.cdiSpecDirs {
		specs, err := filepath.Glob(filepath.Join(dir, "*gpuslice*"))
		if err != nil {
			return nil, err
		}
		mentions = append(mentions, specs...)
	}
	return oci.PruneLibraries(p.dir, p.settings, time.Now(), mentions, func() ([]string, error) {
		dirs, err := claimDirs(ctx, p.ledger)
		return slices.Sorted(maps.Values(dirs)), err
	})
}
