package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/oci"
)

func resizeOnNode(c *cobra.Command, target string, o resizeOptions) error {
	ledger, file, err := openNode(c)
	if err != nil {
		return err
	}
	defer ledger.Close()
	gpus := node.Capacities(file.Devices)
	uuid := ""
	if o.gpu != "" {
		if uuid, err = findGPU(file, o.gpu); err != nil {
			return err
		}
	}
	snapshot, err := ledger.Snapshot(c.Context())
	if err != nil {
		return err
	}
	claim, err := findClaim(snapshot.Claims(), target)
	if err == nil {
		err = checkResizable(ledger, claim)
	}
	if err != nil {
		return err
	}
	shares, err := o.of(claim.Shares, gpus, uuid)
	if err != nil {
		return err
	}
	before, err := reserve(c.Context(), ledger, claim.ContainerID, shares, gpus)
	if err != nil {
		return err
	}
	for i, s := range shares {
		fmt.Fprintf(c.OutOrStdout(), "container %s, GPU %s: %s\n", claim.ContainerID, s.UUID, change(before[i], s))
	}
	return nil
}

// openNode opens the ledger in the state directory, and reads the node's GPUs.
func openNode(c *cobra.Command) (*ledger.Ledger, node.File, error) {
	file, err := node.Read(stateDir(c)) // first: OpenLedger creates the directory
	if err != nil {
		return nil, file, err
	}
	ledger, err := ledger.Open(stateDir(c), ledger.WithRecovery(oci.RecoverShares))
	return ledger, file, err
}

// findClaim finds a claim by its container's ID, a prefix of it, or its name.
func findClaim(claims []ledger.Claim, target string) (ledger.Claim, error) {
	var found []string
	byID := map[string]ledger.Claim{}
	for _, c := range claims {
		if byID[c.ContainerID] = c; c.ContainerID == target {
			return c, nil
		}
		if strings.HasPrefix(c.ContainerID, target) || c.Container == target {
			found = append(found, c.ContainerID)
		}
	}
	id, err := cluster.One("container", target, found, "gpuslice status -o wide")
	return byID[id], err
}

// checkResizable rejects claims that the scheduler or the config decides about.
func checkResizable(store *ledger.Ledger, claim ledger.Claim) error {
	if claim.Owner != ledger.OwnerRuntime {
		return fmt.Errorf("the scheduler reserves the shares of container %s of pod %s/%s: run gpuslice resize %s/%s:%s with a kubeconfig",
			claim.ContainerID, claim.PodNamespace, claim.PodName, claim.PodNamespace, claim.PodName, claim.Container)
	}
	record, err := orphans.Read(store.Dir(claim.ContainerID))
	if err != nil {
		return fmt.Errorf("container %s: %w", claim.ContainerID, err)
	}
	if record.Slice != "" {
		return fmt.Errorf("container %s has the slice %q: change the slice in the config, and run gpuslice cdi generate", claim.ContainerID, record.Slice)
	}
	return nil
}

// reserve resizes the claim. If a GPU is full, it releases orphans first.
func reserve(ctx context.Context, ledger *ledger.Ledger, id string, shares []grant.Share, gpus map[string]grant.GPU) ([]grant.Share, error) {
	before, err := ledger.Resize(ctx, id, shares, gpus, oci.Resize)
	if errors.Is(err, grant.ErrOverbooked) {
		snapshot, readErr := ledger.Snapshot(ctx)
		if readErr != nil {
			return before, err
		}
		releaser := orphans.Releaser{Ledger: ledger, Judge: orphans.NewJudge()}
		if swept, sweepErr := releaser.Sweep(ctx, snapshot); sweepErr == nil && swept {
			before, err = ledger.Resize(ctx, id, shares, gpus, oci.Resize)
		}
	}
	if errors.Is(err, limiter.ErrHalfWritten) {
		err = fmt.Errorf("%w: start gpuslice-agent, which fixes it, or restart the container", err)
	}
	return before, err
}

// findGPU finds the UUID of a GPU by an index, a UUID or a prefix of it.
func findGPU(f node.File, name string) (string, error) {
	var found []string
	for _, gpu := range f.Node.GPUs {
		if fmt.Sprint(gpu.Index) == name || gpu.UUID == name {
			return gpu.UUID, nil
		}
		devices := []string{gpu.UUID}
		for _, d := range gpu.MIG {
			devices = append(devices, d.UUID)
		}
		for _, uuid := range devices {
			if uuid == name {
				return uuid, nil
			}
			if strings.HasPrefix(uuid, name) && len(name) > len("GPU-") {
				found = append(found, uuid)
			}
		}
	}
	return cluster.One("GPU", name, found, "gpuslice status")
}
