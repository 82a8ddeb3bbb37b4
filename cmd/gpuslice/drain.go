package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
)

// drainOptions are how a GPU is drained.
type drainOptions struct {
	dryRun         bool
	grace, timeout time.Duration
}

func drainCommand() *cobra.Command {
	var o drainOptions
	c := &cobra.Command{
		Use:   "drain [NODE] GPU",
		Short: "Cordon a GPU and evict the pods that have a share of it",
		Long: `Cordons a GPU of a node of the cluster and evicts the pods that have a share of
it, as kubectl drain does with a node's: PodDisruptionBudgets are kept, and a pod
without a controller is gone for good. Pods that have no share of the GPU stay.

With one argument it is a GPU of this node, without an API server: it is cordoned,
and who holds it is said; nothing here ends docker's containers.

Exit status: 0 nothing has a share of the GPU any more (with --dry-run: what would
be done is said); 1 something still has, or it failed; 2 the call is wrong.`,
		Example:           "  kubectl gpuslice drain node-1 0 --dry-run\n  kubectl gpuslice drain node-1 GPU-5a3c --grace-period 1m",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: completeGPUs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 && isPlugin() {
				return errWhichNode
			}
			if len(args) == 1 {
				return drainHere(c, args[0], o)
			}
			ctx, cancel := context.WithTimeout(c.Context(), o.timeout)
			defer cancel()
			return work(drain(ctx, c, args[0], args[1], o))
		},
	}
	clusterFlags(c)
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "only say what would be done")
	c.Flags().DurationVar(&o.grace, "grace-period", -1, "`time` that pods get to end, in seconds, of which a begun one is one; negative is their own")
	c.Flags().DurationVar(&o.timeout, "timeout", 10*time.Minute, "`time` to wait for evictions that a budget delays, and for pods to end")
	return c
}

func drain(ctx context.Context, c *cobra.Command, node, name string, o drainOptions) error {
	connection, err := connect(c)
	if err != nil {
		return err
	}
	uuid, err := connection.GPU(ctx, node, name)
	if err != nil {
		return err
	}
	say := func(format string, args ...any) { fmt.Fprintf(c.OutOrStdout(), format+"\n", args...) }
	if o.dryRun {
		say("GPU %s of node %s would be cordoned", uuid, node)
	} else if err := cordonThere(ctx, c, connection, node, uuid, true); err != nil {
		return err
	}
	holders, unread := connection.Holders(ctx, node, uuid)
	if len(holders) == 0 && unread == nil {
		say("no pod has a share of it")
	}
	if o.dryRun {
		for _, h := range holders {
			say("pod %s would be evicted: it has %d MiB and %d percent of cores", h, h.MemoryMiB, h.Cores)
		}
		return unread
	}
	return errors.Join(unread, connection.Evict(ctx, holders, cluster.Evictions{GracePeriod: o.grace, Say: say}))
}

// cordonThere cordons a GPU of a node of the cluster, or takes that back.
func cordonThere(ctx context.Context, c *cobra.Command, connection *cluster.Cluster, node, uuid string, on bool) error {
	changed, err := connection.Cordon(ctx, node, uuid, on)
	if err != nil {
		return err
	}
	state := "cordoned"
	if !on {
		state = "not cordoned"
	}
	already := ""
	if !changed {
		already = " already"
	}
	fmt.Fprintf(c.OutOrStdout(), "GPU %s of node %s is%s %s\n", uuid, node, already, state)
	return nil
}

// cordonInCluster is cordon and uncordon with two arguments.
func cordonInCluster(c *cobra.Command, node, name string, on bool) error {
	ctx, cancel := context.WithTimeout(c.Context(), answerPatience)
	defer cancel()
	connection, err := connect(c)
	if err != nil {
		return work(err)
	}
	uuid, err := connection.GPU(ctx, node, name)
	if err != nil {
		return work(err)
	}
	return work(cordonThere(ctx, c, connection, node, uuid, on))
}

var errHeld = errors.New("containers still hold the GPU: stop them, and nothing new comes")

// drainHere cordons a GPU of this node and says who holds it.
func drainHere(c *cobra.Command, name string, o drainOptions) error {
	held, err := cordonHere(c, name, true, o.dryRun)
	if err == nil && held > 0 && !o.dryRun {
		err = work(errHeld)
	}
	return err
}
