package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/monitor/nodeview"
)

const holdEarlierPause = 5 * time.Second

// holdEarlier makes containers without turns, which an earlier release created, keep to their shares: their limiters
// follow an agent's reports of the use of the GPU.
func holdEarlier(ctx context.Context, store *ledger.Ledger, floor int, log *slog.Logger) error {
	snapshot, err := store.Snapshot(ctx)
	if err != nil {
		return err
	}
	remainders := nodeview.Remainders(snapshot, floor)
	for _, c := range snapshot.Claims() {
		if c.TurnID != 0 {
			continue
		}
		percents := make([]int, len(c.Shares))
		for i, share := range c.Shares {
			percents[i] = int(remainders[share.UUID])
		}
		err := limiter.HoldEarlier(store.Dir(c.ContainerID), percents)
		if err != nil {
			log.Warn("a container of an earlier release is not held to its share", "id", c.ContainerID, "error", err)
			continue
		}
		log.Info("a container of an earlier release takes no turns: it is held to its share until it is created again", "id", c.ContainerID)
	}
	return nil
}

// holdEarlierOnce waits until the ledger can be read: another process may hold its lock.
func holdEarlierOnce(ctx context.Context, store *ledger.Ledger, floor int, log *slog.Logger) {
	for {
		err := holdEarlier(ctx, store, floor, log)
		if err == nil {
			return
		}
		log.Warn("containers of an earlier release are not held to their shares yet", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(holdEarlierPause):
		}
	}
}
