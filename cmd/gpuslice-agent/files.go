package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
)

const holdInterval = time.Second

func holdFiles(ledger *ledger.Ledger, holder *limiter.Holder, turn *progress, log *slog.Logger) func(context.Context) {
	return func(ctx context.Context) {
		defer holder.Close()
		tick := time.NewTicker(holdInterval)
		defer tick.Stop()
		logged := ""
		for {
			turn.tick()
			err := holder.Follow(func() (map[string]string, error) { return claimDirs(ctx, ledger) })
			if text := errorText(err); text != logged {
				logged = text
				if err != nil && ctx.Err() == nil {
					log.Warn("failed to open files of containers; retrying", "error", err)
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
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

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
