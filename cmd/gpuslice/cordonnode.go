package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/grant"
)

const cordonManual = `Keeps new containers from a card. What runs on it goes on; a container that
restarts in its pod may have it again.

With one argument it is a card of this node, and the cordon is in its state folder:
for what no scheduler speaks of, docker's containers and the like. It needs no API
server, and ends with the machine's boot.

With two it is a card of that node of the cluster, and the cordon is in the Node
object (hami.io/device-cordon): for pods. It lasts until it is taken away.

Exit status: 0 it is done; 1 it failed; 2 the call is wrong.`

func cordonCommand() *cobra.Command {
	c := &cobra.Command{
		Use:               "cordon [NODE] CARD",
		Short:             "Keep new containers from a card",
		Long:              cordonManual,
		Example:           "  gpuslice cordon 0\n  kubectl gpuslice cordon node-1 GPU-5a3c",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: completeCards,
		RunE:              func(c *cobra.Command, args []string) error { return cordon(c, args, true) },
	}
	clusterFlags(c)
	return c
}

var errWhichNode = errors.New("which node's card? want NODE CARD")

func cordon(c *cobra.Command, args []string, on bool) error {
	if len(args) == 2 {
		return cordonInCluster(c, args[0], args[1], on)
	}
	if isPlugin() {
		return errWhichNode
	}
	_, err := cordonHere(c, args[0], on, false)
	return err
}

func uncordonCommand() *cobra.Command {
	c := &cobra.Command{
		Use:               "uncordon [NODE] CARD",
		Short:             "Let new containers have a card again",
		Long:              "Takes back what gpuslice cordon has done, where it was done: on this node with one argument, in the cluster with two.",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: completeCards,
		RunE:              func(c *cobra.Command, args []string) error { return cordon(c, args, false) },
	}
	clusterFlags(c)
	return c
}

// cordonHere keeps new containers from a card of this node, or lets them have it again, by
// the node's ledger: without an API server. It says how many containers hold the card.
func cordonHere(c *cobra.Command, name string, on, dryRun bool) (held int, err error) {
	ledger, file, err := openNode(c)
	if err != nil {
		return 0, work(err)
	}
	defer ledger.Close()
	uuid, err := findCard(file, name)
	if err != nil {
		return 0, work(err)
	}
	change, done := ledger.Cordon, "gets no new containers on this node"
	if !on {
		change, done = ledger.Uncordon, "gets new containers on this node again"
	}
	if dryRun {
		done = "would get no new containers on this node"
	} else if err := change(c.Context(), uuid); err != nil {
		return 0, work(err)
	}
	fmt.Fprintf(c.OutOrStdout(), "card %s %s\n", uuid, done)
	if !on {
		return 0, nil
	}
	snapshot, err := ledger.Snapshot(c.Context())
	if err != nil {
		return 0, work(err)
	}
	holders := holdersOf(snapshot.Claims(), uuid)
	for _, h := range holders {
		fmt.Fprintf(c.OutOrStdout(), "it is held by container %s%s\n", h.ContainerID, podOf(h))
	}
	return len(holders), nil
}

// holdersOf are the claims that have a share of the card.
func holdersOf(claims []grant.Claim, uuid string) (holders []grant.Claim) {
	for _, claim := range claims {
		for _, s := range claim.Shares {
			if s.UUID == uuid {
				holders = append(holders, claim)
			}
		}
	}
	return holders
}

func podOf(c grant.Claim) string {
	if c.PodName == "" {
		return ""
	}
	return fmt.Sprintf(" of pod %s/%s", c.PodNamespace, c.PodName)
}
