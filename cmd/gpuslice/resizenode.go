package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/oci"
)

// resizeOnNode resizes a container that no Kubernetes speaks for, by the node's ledger.
func resizeOnNode(c *cobra.Command, target string, o resizeOptions) error {
	ctx := c.Context()
	ledger, file, err := openNode(c)
	if err != nil {
		return work(err)
	}
	defer ledger.Close()
	gpus := node.Capacities(file.Devices)
	uuid := ""
	if o.gpu != "" {
		if uuid, err = findGPU(file, o.gpu); err != nil {
			return work(err)
		}
	}
	snapshot, err := ledger.Snapshot(ctx)
	if err != nil {
		return work(err)
	}
	claim, err := findClaim(snapshot.Claims(), target)
	if err == nil {
		err = resizableHere(ledger, claim)
	}
	if err != nil {
		return work(err)
	}
	shares, err := o.of(claim.Shares, gpus, uuid)
	if err != nil {
		return work(err)
	}
	before, err := rebook(ctx, ledger, claim.ContainerID, shares, gpus)
	if err != nil {
		return work(err)
	}
	for i, s := range shares {
		fmt.Fprintf(c.OutOrStdout(), "container %s, GPU %s: %s\n", claim.ContainerID, s.UUID, change(before[i], s))
	}
	return nil
}

// openNode opens the ledger of the node whose state directory was named, and reads its GPUs.
func openNode(c *cobra.Command) (*ledger.Ledger, node.File, error) {
	stateDir, err := c.Flags().GetString("state-dir")
	if err != nil {
		return nil, node.File{}, err
	}
	file, err := node.Read(stateDir) // before OpenLedger, which would make a directory of a name that was misspelled
	if err != nil {
		return nil, file, err
	}
	ledger, err := ledger.Open(stateDir, ledger.WithRecovery(oci.RecoverShares))
	return ledger, file, err
}

// findClaim is the one whose container the target names: its id, the beginning of it, or
// its name.
func findClaim(claims []ledger.Claim, target string) (ledger.Claim, error) {
	var found []ledger.Claim
	for _, c := range claims {
		if c.ContainerID == target {
			return c, nil
		}
		if strings.HasPrefix(c.ContainerID, target) || c.Container == target {
			found = append(found, c)
		}
	}
	switch len(found) {
	case 0:
		return ledger.Claim{}, fmt.Errorf("no container with a share is called %q here, nor does the id of one begin so: gpuslice status -o wide lists them", target)
	case 1:
		return found[0], nil
	}
	var ids []string
	for _, c := range found {
		ids = append(ids, c.ContainerID)
	}
	slices.Sort(ids)
	return ledger.Claim{}, fmt.Errorf("%q is %d containers (%s): name one by more of its id", target, len(found), strings.Join(ids, ", "))
}

// resizableHere says whether the node alone decides about the claim.
func resizableHere(store *ledger.Ledger, claim ledger.Claim) error {
	if claim.Owner != ledger.OwnerRuntime {
		return fmt.Errorf("container %s is of pod %s/%s, and the scheduler has its book of what that has: gpuslice resize %s/%s:%s, with a kubeconfig",
			claim.ContainerID, claim.PodNamespace, claim.PodName, claim.PodNamespace, claim.PodName, claim.Container)
	}
	record, err := orphans.Read(store.Dir(claim.ContainerID))
	if err != nil {
		return fmt.Errorf("container %s: %w", claim.ContainerID, err)
	}
	if record.Slice != "" {
		return fmt.Errorf("container %s has the slice %q, which is as the operator's config says: change it there, and run gpuslice cdi", claim.ContainerID, record.Slice)
	}
	return nil
}

// rebook is the resize. Where a GPU is full, what is booked for containers that are gone
// is given back first.
func rebook(ctx context.Context, ledger *ledger.Ledger, id string, shares []grant.Share, gpus map[string]grant.GPU) ([]grant.Share, error) {
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
		err = fmt.Errorf("%w: start gpuslice-agent, which fixes it, or the container again", err)
	}
	return before, err
}

// findGPU is the UUID of the GPU that a person names: an index, a UUID or the beginning of one.
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
	switch len(found) {
	case 0:
		return "", fmt.Errorf("GPU %q: the node has none of that index or UUID: gpuslice status lists its GPUs", name)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("GPU %q is %d GPUs (%s): write more of the UUID", name, len(found), strings.Join(found, ", "))
}
