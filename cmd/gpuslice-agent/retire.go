package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/agent/noderegister"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/oci"
)

// retire takes away what agents have left on this node, and then waits to be told to end: so a DaemonSet that was rolled
// out with --retire has left nothing on any node. Containers that run have mounted what is removed here, and keep it.
func retire(ctx context.Context, o options, log *slog.Logger) error {
	unlock, err := prepareStateDir(o.StateDir, log)
	if err != nil {
		return err
	}
	defer unlock()
	if err := forgetNode(ctx, o, log); err != nil {
		return err
	}
	if err := removeFiles(ctx, o); err != nil {
		return err
	}
	log.Info("nothing of gpuslice is left on this node but what running containers have mounted", "node", o.NodeName)
	listener, err := listen("health-address", o.HealthAddress)
	if err != nil {
		return err
	}
	if listener == nil {
		<-ctx.Done()
		return nil
	}
	return serveHealth(ctx, listener, healthServer(nil, nil))
}

// forgetNode removes what the Node object says of this node's GPUs.
func forgetNode(ctx context.Context, o options, log *slog.Logger) error {
	config, err := o.apiServer(log)
	if err != nil || config == nil {
		return err
	}
	client, err := noderegister.NewClient(*config)
	if err != nil {
		return err
	}
	removed, err := noderegister.Remove(ctx, client, o.NodeName)
	if err != nil {
		return fmt.Errorf("take the GPUs out of Node %s: %w", o.NodeName, err)
	}
	log.Info("labels and annotations of the node removed", "count", removed)
	return nil
}

// removeFiles removes the state, the limiter's libraries and the device plugin's sockets; not where the runtime wrapper
// needs them for docker, podman or plain containerd.
func removeFiles(ctx context.Context, o options) error {
	if err := checkNoWrapper(ctx, o.StateDir); err != nil {
		return err
	}
	sockets, err := filepath.Glob(filepath.Join(o.DevicePluginDir, "gpuslice-*.sock"))
	if err != nil || o.DevicePluginDir == "" {
		sockets = nil
	}
	errs := []error{err}
	for _, socket := range sockets {
		errs = append(errs, os.Remove(socket))
	}
	errs = append(errs, removeClaims(o.StateDir))
	state, err := os.ReadDir(o.StateDir)
	errs = append(errs, err)
	for _, entry := range state {
		// A --state-dir that is a directory of the machine's, by mistake, is not emptied.
		if ours(entry.Name()) {
			errs = append(errs, os.RemoveAll(filepath.Join(o.StateDir, entry.Name())))
		}
	}
	return errors.Join(append(errs, oci.RemoveLibraries(o.LibraryDir))...)
}

// removeClaims unmounts the claims' file systems and removes their directories.
func removeClaims(stateDir string) error {
	claims, err := filepath.Glob(filepath.Join(stateDir, "containers", "*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range claims {
		errs = append(errs, vgpufs.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// stateNames are what is in the state directory: the ledger's, the agent's, and the runtime wrapper's.
var stateNames = []string{
	"containers", "lock", "generation", "cordoned", "resized", "agent.lock", "node.json", allowedFile,
	"gpus.json", "cdi.json", "limiter.json",
}

// ours says whether something in the state directory was made by gpuslice: by its name, or as a lock or an unfinished copy of it
// (gpus.json.lock, node.json.new, .node.json-123).
func ours(name string) bool {
	return slices.ContainsFunc(stateNames, func(known string) bool {
		return name == known || strings.HasPrefix(name, known+".") || strings.HasPrefix(name, "."+known+"-")
	})
}

// checkNoWrapper refuses where containers are booked that have their share by the runtime wrapper.
func checkNoWrapper(ctx context.Context, stateDir string) error {
	store, err := ledger.Open(stateDir)
	if err != nil {
		return err
	}
	defer store.Close()
	snapshot, err := store.Snapshot(ctx)
	if err != nil {
		return err
	}
	for _, claim := range snapshot.Claims() {
		if claim.Owner == ledger.OwnerRuntime {
			return fmt.Errorf("container %s has its share by gpuslice-runtime: end it and `gpuslice uninstall` its engine first", claim.ContainerID)
		}
	}
	return nil
}
