package main

import (
	"context"
	"log/slog"

	"github.com/gpuslice/gpuslice/gpu"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/cores"
)

// coreLoop follows the shares of compute time of the containers that are booked.
func coreLoop(ledger *grant.Ledger, inventory *gpu.Cache, turn *progress, unlimitedFloor int, log *slog.Logger) *cores.Loop {
	return cores.New(cores.Config{
		Containers: func(ctx context.Context) ([]cores.Container, error) {
			turn.tick()
			snapshot, err := ledger.Snapshot(ctx)
			if err != nil {
				return nil, err
			}
			return coreContainers(snapshot, ledger.Folder), nil
		},
		Times: func(ctx context.Context) (map[string][]gpu.ProcessTime, error) {
			defer turn.waitForNVML()()
			return inventory.ProcessTimes(ctx)
		},
		Memories: func(ctx context.Context) (map[string][]gpu.ProcessMemory, error) {
			defer turn.waitForNVML()()
			return inventory.ProcessMemories(ctx)
		},
		Owners: cores.NewOwners("/proc").Find,
		Log:    log,

		UnlimitedFloor: unlimitedFloor,
	})
}

// coreContainers are those whose claims count.
func coreContainers(s *grant.Snapshot, folder func(id string) string) []cores.Container {
	var all []cores.Container
	for _, claim := range s.Claims() {
		all = append(all, cores.Container{ID: claim.ContainerID, Dir: folder(claim.ContainerID)})
	}
	return all
}
