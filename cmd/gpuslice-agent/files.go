package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/gpuslice/gpuslice/internal/logonce"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
)

const holdInterval = time.Second

func holdFiles(ledger *ledger.Ledger, holder *limiter.Holder, turn *progress, log *slog.Logger) func(context.Context) {
	return func(ctx context.Context) {
		defer holder.Close()
		var problem logonce.Problem
		periodic.Vary(ctx, nil, func() time.Duration {
			turn.tick()
			err := holder.Follow(func() (map[string]string, error) { return claimDirs(ctx, ledger) })
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
