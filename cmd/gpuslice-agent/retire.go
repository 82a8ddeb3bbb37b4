package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpuslice/gpuslice/agent/noderegister"
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/monitor/verification"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/native"
	ociruntime "github.com/gpuslice/gpuslice/oci/runtime"
)

// retire removes everything that agents created on this node, and then waits for a signal, so that
// a DaemonSet with --retire cleans all nodes. Running containers keep what they mounted.
func retire(ctx context.Context, o options, log *slog.Logger) error {
	unlock, err := prepareStateDir(o.StateDir, log)
	if err != nil {
		return err
	}
	defer unlock()
	if err := forgetNode(ctx, o, log); err != nil {
		return err
	}
	if err := removeFiles(ctx, o, log); err != nil {
		return err
	}
	log.Info("gpuslice removed from this node, except files that running containers have mounted", "node", o.NodeName)
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

func forgetNode(ctx context.Context, o options, log *slog.Logger) error {
	config, err := o.apiServer(log)
	if err != nil || config == nil {
		return err
	}
	client, err := noderegister.NewClient(config, noderegister.FieldManager)
	if err != nil {
		return err
	}
	removed, err := noderegister.Remove(ctx, client, o.NodeName)
	if err != nil {
		return fmt.Errorf("remove annotations and labels of node %s: %w", o.NodeName, err)
	}
	log.Info("labels and annotations of the node removed", "count", removed)
	if err := noderegister.RemoveCapacity(ctx, client, o.NodeName, o.capacity()); err != nil {
		return fmt.Errorf("node %s: %w", o.NodeName, err)
	}
	if err := removeConditions(ctx, client, o, log); err != nil {
		return fmt.Errorf("node %s: %w", o.NodeName, err)
	}
	return nil
}

// removeConditions removes what an agent with --node-condition wrote, also if the flag is not set any more: then it may be forbidden.
func removeConditions(ctx context.Context, client noderegister.Client, o options, log *slog.Logger) error {
	for _, condition := range []string{verification.Condition, limitedByDriver} {
		err := noderegister.RemoveCondition(ctx, client, o.NodeName, condition)
		if !o.NodeCondition && apierrors.IsForbidden(err) {
			log.Info("a condition by gpuslice stays on the node, if there is one: no right to remove it (docs/VERIFY.md)", "condition", condition)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeFiles refuses if the runtime wrapper needs the files.
func removeFiles(ctx context.Context, o options, log *slog.Logger) error {
	if err := removeReleased(ctx, o.StateDir); err != nil {
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
	errs = append(errs, removeDRA(o, log), removeClaims(o.StateDir))
	turnsUsed, err := unmountTurns(o.StateDir)
	errs = append(errs, err)
	state, err := os.ReadDir(o.StateDir)
	errs = append(errs, err)
	for _, entry := range state {
		// --state-dir can be a wrong directory: delete known names only.
		if ours(entry.Name()) && !(turnsUsed && entry.Name() == vgpufs.TurnsName) {
			errs = append(errs, os.RemoveAll(filepath.Join(o.StateDir, entry.Name())))
		}
	}
	errs = append(errs, verification.Remove(o.LibraryDir))
	return errors.Join(append(errs, oci.RemoveLibraries(o.LibraryDir))...)
}

// removeDRA removes the CDI specs of prepared ResourceClaims, and the driver's sockets. On a read-only mount they stay, as
// the chart has one of the directory of specs without dra.enabled: a repetition would not help.
func removeDRA(o options, log *slog.Logger) error {
	files := []string{o.registrationSocket()}
	var errs []error
	for _, dir := range o.CDISpecDirs {
		for _, pattern := range []string{api.CDIClaimSpecPrefix + "*.json", ".new-" + api.CDIClaimSpecPrefix + "*"} {
			specs, err := filepath.Glob(filepath.Join(dir, pattern))
			files, errs = append(files, specs...), append(errs, err)
		}
	}
	for _, file := range files {
		errs = append(errs, unlessReadOnly(file, os.Remove(file), log))
	}
	dir := filepath.Join(o.KubeletDir, "plugins", api.DRADriver)
	return errors.Join(append(errs, unlessReadOnly(dir, os.RemoveAll(dir), log))...)
}

func unlessReadOnly(path string, err error, log *slog.Logger) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, syscall.EROFS):
		log.Warn("a file of ResourceClaims stays, on a read-only mount: remove it by hand", "path", path)
		return nil
	}
	return err
}

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

// unmountTurns leaves what containers have mounted: those that the next agent creates must see it, and be seen.
func unmountTurns(stateDir string) (used bool, err error) {
	err = limiter.EachTurn(stateDir, func(string, limiter.TurnID) { used = true })
	if used || err != nil {
		return true, err
	}
	return false, vgpufs.UnmountTurns(stateDir)
}

var stateNames = []string{
	"containers", api.PreparedDirName, vgpufs.TurnsName, "lock", "generation", "cordoned", "resized", "agent.lock", api.NodeFileName, allowedFile,
	api.NodeCacheName, "cdi.json", "limiter.json", native.SocketName, ociruntime.NativeProbeName,
}

// ours accepts stateNames, their locks (gpus.json.lock) and unfinished copies.
func ours(name string) bool {
	if file, is := atomicfile.Unfinished(name); is {
		name = file
	}
	return slices.ContainsFunc(stateNames, func(known string) bool {
		return name == known || strings.HasPrefix(name, known+".")
	})
}

// removeReleased refuses while the runtime wrapper's containers have claims.
func removeReleased(ctx context.Context, stateDir string) error {
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
			return fmt.Errorf("container %s was created by gpuslice-runtime: stop it and run `gpuslice uninstall` for its engine first", claim.ContainerID)
		}
	}
	for _, e := range snapshot.Entries {
		if e.State == ledger.StateReleased {
			if err := store.Remove(ctx, e.ContainerID); err != nil {
				return err
			}
		}
	}
	return nil
}
