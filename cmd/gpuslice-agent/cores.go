package main

import (
	"context"
	"log/slog"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter/feedback"
	"github.com/gpuslice/gpuslice/nvidia"
)

func coreLoop(ledger *ledger.Ledger, inventory *nvidia.Cache, turn *progress, unlimitedFloor int, log *slog.Logger) *feedback.Loop {
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
		Memories: func(ctx context.Context) (map[string][]nvidia.ProcessMemory, error) {
			defer turn.waitForNVML()()
			return inventory.ProcessMemories(ctx)
		},
		Owners: feedback.NewOwners("/proc").Find,
		Log:    log,

		UnlimitedFloor: unlimitedFloor,
	})
}

func coreContainers(s *ledger.Snapshot, dir func(id string) string) []feedback.Container {
	var all []feedback.Container
	for _, claim := range s.Claims() {
		all = append(all, feedback.Container{ID: claim.ContainerID, Dir: dir(claim.ContainerID)})
	}
	return all
}
