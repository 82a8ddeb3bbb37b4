package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/oci"
)

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
	return oci.PruneLibraries(p.dir, p.settings, time.Now(), mentions, func() (claims []string, err error) {
		snapshot, err := p.ledger.Snapshot(ctx)
		if err != nil {
			return nil, err
		}
		for _, entry := range snapshot.Entries {
			claims = append(claims, p.ledger.Dir(entry.ContainerID))
		}
		return claims, nil
	})
}
