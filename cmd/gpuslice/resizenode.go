package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/claimed"
)

// resizeOnNode resizes a container that no Kubernetes speaks for, by the node's ledger.
func resizeOnNode(c *cobra.Command, target string, o resizeOptions) error {
	ctx := c.Context()
	ledger, file, err := openNode(c)
	if err != nil {
		return work(err)
	}
	defer ledger.Close()
	cards := node.Capacities(file.Devices)
	uuid := ""
	if o.card != "" {
		if uuid, err = findCard(file, o.card); err != nil {
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
	shares, err := o.of(claim.Shares, cards, uuid)
	if err != nil {
		return work(err)
	}
	before, err := rebook(ctx, ledger, claim.ContainerID, shares, cards)
	if err != nil {
		return work(err)
	}
	for i, s := range shares {
		fmt.Fprintf(c.OutOrStdout(), "container %s, card %s: %s\n", claim.ContainerID, s.UUID, change(before[i], s))
	}
	return nil
}

// openNode opens the ledger of the node whose state folder was named, and reads its cards.
func openNode(c *cobra.Command) (*grant.Ledger, node.File, error) {
	stateDir, err := c.Flags().GetString("state-dir")
	if err != nil {
		return nil, node.File{}, err
	}
	file, err := node.Read(stateDir) // before OpenLedger, which would make a folder of a name that was misspelled
	if err != nil {
		return nil, file, err
	}
	ledger, err := grant.OpenLedger(stateDir, grant.WithRecovery(oci.RecoverShares))
	return ledger, file, err
}

// findClaim is the one whose container the target names: its id, the beginning of it, or
// its name.
func findClaim(claims []grant.Claim, target string) (grant.Claim, error) {
	var found []grant.Claim
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
		return grant.Claim{}, fmt.Errorf("no container with a share is called %q here, nor does the id of one begin so: gpuslice status -o wide lists them", target)
	case 1:
		return found[0], nil
	}
	var ids []string
	for _, c := range found {
		ids = append(ids, c.ContainerID)
	}
	slices.Sort(ids)
	return grant.Claim{}, fmt.Errorf("%q is %d containers (%s): name one by more of its id", target, len(found), strings.Join(ids, ", "))
}

// resizableHere says whether the node alone decides about the claim.
func resizableHere(ledger *grant.Ledger, claim grant.Claim) error {
	if claim.Owner != grant.OwnerRuntime {
		return fmt.Errorf("container %s is of pod %s/%s, and the scheduler has its book of what that has: gpuslice resize %s/%s:%s, with a kubeconfig",
			claim.ContainerID, claim.PodNamespace, claim.PodName, claim.PodNamespace, claim.PodName, claim.Container)
	}
	record, err := claimed.Read(ledger.Folder(claim.ContainerID))
	if err != nil {
		return fmt.Errorf("container %s: %w", claim.ContainerID, err)
	}
	if record.Slice != "" {
		return fmt.Errorf("container %s has the slice %q, which is as the operator's config says: change it there, and run gpuslice cdi", claim.ContainerID, record.Slice)
	}
	return nil
}

// rebook is the resize. Where a card is full, what is booked for containers that are gone
// is given back first.
func rebook(ctx context.Context, ledger *grant.Ledger, id string, shares []grant.Share, cards map[string]grant.Card) ([]grant.Share, error) {
	before, err := ledger.Resize(ctx, id, shares, cards, oci.Resize)
	if errors.Is(err, grant.ErrOverbooked) {
		snapshot, readErr := ledger.Snapshot(ctx)
		if readErr != nil {
			return before, err
		}
		releaser := claimed.Releaser{Ledger: ledger, Judge: claimed.NewJudge()}
		if swept, sweepErr := releaser.Sweep(ctx, snapshot); sweepErr == nil && swept {
			before, err = ledger.Resize(ctx, id, shares, cards, oci.Resize)
		}
	}
	if errors.Is(err, limiter.ErrHalfWritten) {
		err = fmt.Errorf("%w: start gpuslice-agent, which mends it, or the container anew", err)
	}
	return before, err
}

// findCard is the UUID of the card that a person names: an index, a UUID or the beginning of one.
func findCard(f node.File, name string) (string, error) {
	var found []string
	for _, card := range f.Node.Cards {
		if fmt.Sprint(card.Index) == name || card.UUID == name {
			return card.UUID, nil
		}
		devices := []string{card.UUID}
		for _, d := range card.MIG {
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
		return "", fmt.Errorf("card %q: the node has none of that index or UUID: gpuslice status lists its cards", name)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("card %q is %d cards (%s): write more of the UUID", name, len(found), strings.Join(found, ", "))
}
