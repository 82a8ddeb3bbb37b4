package main

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/gpuslice/gpuslice/gpu"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/monitor/cores"
)

// coreLoop follows the shares of compute time of the containers that are booked.
func coreLoop(ledger *grant.Ledger, inventory *gpu.Cache, log *slog.Logger) *cores.Loop {
	return cores.New(cores.Config{
		Containers: func(ctx context.Context) ([]cores.Container, error) {
			snapshot, err := ledger.Snapshot(ctx)
			if err != nil {
				return nil, err
			}
			return coreContainers(snapshot, ledger.Folder), nil
		},
		Times:    inventory.ProcessTimes,
		Memories: inventory.ProcessMemories,
		Owners:   cores.NewOwners("/proc").Find,
		Log:      log,
	})
}

// coreContainers are those whose claims count.
func coreContainers(s *grant.Snapshot, folder func(id string) string) []cores.Container {
	var all []cores.Container
	for _, claim := range s.Claims() {
		dir := folder(claim.ContainerID)
		all = append(all, cores.Container{
			ID: claim.ContainerID, LimitsFile: filepath.Join(dir, "limits"), UsageFile: filepath.Join(dir, "usage"),
		})
	}
	return all
}
