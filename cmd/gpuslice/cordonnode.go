package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/node"
)

const cordonManual = `Keeps new containers from a GPU. What runs on it goes on; a container that
restarts in its pod may have it again.

A GPU is named by its index, its UUID or the beginning of that. With it its MIG
devices are cordoned, those that are made later, too; one device alone is by its
own UUID.

With one argument it is a GPU of this node, and the cordon is in its state directory:
for what no scheduler speaks of, docker's containers and the like. It needs no API
server, and ends with the machine's boot.

With two it is a GPU of that node of the cluster, and the cordon is in the Node
object (hami.io/device-cordon): for pods. It lasts until it is taken away.

Exit status: 0 it is done; 1 it failed; 2 the call is wrong.`

func cordonCommand() *cobra.Command {
	c := &cobra.Command{
		Use:               "cordon [NODE] GPU",
		Short:             "Keep new containers from a GPU",
		Long:              cordonManual,
		Example:           "  gpuslice cordon 0\n  kubectl gpuslice cordon node-1 GPU-5a3c",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: completeGPUs,
		RunE:              func(c *cobra.Command, args []string) error { return cordon(c, args, true) },
	}
	clusterFlags(c)
	return c
}

var errWhichNode = errors.New("which node's GPU? want NODE GPU")

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
		Use:               "uncordon [NODE] GPU",
		Short:             "Let new containers have a GPU again",
		Long:              "Takes back what gpuslice cordon has done, where it was done: on this node with one argument, in the cluster with two.",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: completeGPUs,
		RunE:              func(c *cobra.Command, args []string) error { return cordon(c, args, false) },
	}
	clusterFlags(c)
	return c
}

// cordonHere keeps new containers from a GPU of this node, or lets them have it again, by
// the node's ledger: without an API server. It says how many containers hold the GPU.
func cordonHere(c *cobra.Command, name string, on, dryRun bool) (held int, err error) {
	ledger, file, err := openNode(c)
	if err != nil {
		return 0, work(err)
	}
	defer ledger.Close()
	uuid, err := findGPU(file, name)
	if err != nil {
		return 0, work(err)
	}
	devices := migOf(file, uuid)
	if !on {
		return 0, work(uncordonHere(c, ledger, file, uuid, devices))
	}
	done := "gets no new containers on this node"
	if dryRun {
		done = "would get no new containers on this node"
	} else if err := ledger.Cordon(c.Context(), uuid); err != nil {
		return 0, work(err)
	}
	fmt.Fprintf(c.OutOrStdout(), "GPU %s %s\n", uuid, done)
	for _, device := range devices {
		fmt.Fprintf(c.OutOrStdout(), "MIG device %s of it %s\n", device, done)
	}
	snapshot, err := ledger.Snapshot(c.Context())
	if err != nil {
		return 0, work(err)
	}
	holders := holdersOf(snapshot.Claims(), append(devices, uuid)...)
	for _, h := range holders {
		fmt.Fprintf(c.OutOrStdout(), "it is held by container %s%s\n", h.ContainerID, podOf(h))
	}
	return len(holders), nil
}

// uncordonHere lets new containers have a GPU and all its MIG devices again. One device
// of a cordoned GPU can't be had before the GPU is.
func uncordonHere(c *cobra.Command, store *ledger.Ledger, file node.File, uuid string, devices []string) error {
	if _, gpu, is := file.Node.MIGDevice(uuid); is {
		stateDir, err := c.Flags().GetString("state-dir")
		if err != nil {
			return err
		}
		cordoned, err := ledger.Cordoned(stateDir)
		if err != nil {
			return err
		}
		if slices.Contains(cordoned, gpu.UUID) {
			return fmt.Errorf("MIG device %s is of GPU %s, which is cordoned: gpuslice uncordon %s, and cordon the devices that are to stay so", uuid, gpu.UUID, gpu.UUID)
		}
	}
	if err := store.Uncordon(c.Context(), append(devices, uuid)...); err != nil {
		return err
	}
	const done = "gets new containers on this node again"
	fmt.Fprintf(c.OutOrStdout(), "GPU %s %s\n", uuid, done)
	for _, device := range devices {
		fmt.Fprintf(c.OutOrStdout(), "MIG device %s of it %s\n", device, done)
	}
	return nil
}

// migOf are the MIG devices of a GPU.
func migOf(f node.File, uuid string) (devices []string) {
	gpu, _ := f.Node.GPU(uuid)
	for _, d := range gpu.MIG {
		devices = append(devices, d.UUID)
	}
	return devices
}

// holdersOf are the claims that have a share of one of the GPUs.
func holdersOf(claims []ledger.Claim, uuids ...string) (holders []ledger.Claim) {
	for _, claim := range claims {
		if slices.ContainsFunc(claim.Shares, func(s grant.Share) bool { return slices.Contains(uuids, s.UUID) }) {
			holders = append(holders, claim)
		}
	}
	return holders
}

func podOf(c ledger.Claim) string {
	if c.PodName == "" {
		return ""
	}
	return fmt.Sprintf(" of pod %s/%s", c.PodNamespace, c.PodName)
}
