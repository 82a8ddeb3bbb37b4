package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
)

func cordonCommand(node local) *cobra.Command {
	c := gpuCommand(node, &cobra.Command{
		Use:   "cordon [NODE] GPU",
		Short: "Keep new containers from a GPU",
		Long: `Keeps new containers from a GPU. Running containers stay, and a container that
restarts in its pod can get the GPU again.

Name the GPU by its index, its UUID or a prefix of it. Its MIG devices are
cordoned, too, also new ones. Name a MIG device by its UUID to cordon only it.

With one argument it is a GPU of this node. The cordon is in the agent's state
directory, for containers without a scheduler, such as docker's. It needs no API
server and ends with the next boot.

With two arguments it is a GPU of that node of the cluster. The cordon is in the
annotation hami.io/device-cordon of the Node object, for pods, until uncordon.

Exit status: 0 success; 1 failure; 2 invalid usage.`,
		Example: "  gpuslice cordon 0\n  kubectl gpuslice cordon node-1 GPU-5a3c",
	}, func(c call, args []string) error { return c.cordon(args, true) })
	ofCluster(c, node, "cordon NODE GPU", "Keep new pods from a GPU", cordonOfCluster, "  kubectl gpuslice cordon node-1 GPU-5a3c")
	return c
}

func uncordonCommand(node local) *cobra.Command {
	c := gpuCommand(node, &cobra.Command{
		Use:   "uncordon [NODE] GPU",
		Short: "Allow new containers on a GPU again",
		Long: `Reverts gpuslice cordon: on this node with one argument, in the cluster with two.

Exit status: 0 success; 1 failure; 2 invalid usage.`,
	}, func(c call, args []string) error { return c.cordon(args, false) })
	ofCluster(c, node, "uncordon NODE GPU", "Allow new pods on a GPU again", "Reverts kubectl gpuslice cordon.\n\nExit status: 0 success; 1 failure; 2 invalid usage.", "  kubectl gpuslice uncordon node-1 0")
	return c
}

// gpuCommand completes a command with the arguments [NODE] GPU.
func gpuCommand(node local, c *cobra.Command, run func(c call, args []string) error) *cobra.Command {
	c.Args = cobra.RangeArgs(1, 2)
	called := kubectlFlags(c, node)
	c.ValidArgsFunction = called.completeGPUs
	c.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 1 && node == nil {
			return errNoNode
		}
		return run(called, args)
	}
	return c
}

func (c call) cordon(args []string, on bool) error {
	if len(args) == 1 {
		_, err := c.node.cordon(c.Command, args[0], on, false)
		return work(err)
	}
	return c.withCluster(requestTimeout, func(ctx context.Context, connection *cluster.Cluster) error {
		uuid, err := connection.GPU(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		return c.cordonInCluster(ctx, connection, args[0], uuid, on)
	})
}

func (c call) cordonInCluster(ctx context.Context, connection *cluster.Cluster, node, uuid string, on bool) error {
	changed, err := connection.Cordon(ctx, node, uuid, on)
	if err != nil {
		return err
	}
	state := "cordoned"
	if !on {
		state = "not cordoned"
	}
	if !changed {
		state = "already " + state
	}
	fmt.Fprintf(c.OutOrStdout(), "GPU %s of node %s is %s\n", uuid, node, state)
	return nil
}

// seconds is a duration in which a number without a unit is in seconds, as in kubectl.
type seconds struct{ time.Duration }

func (s *seconds) Type() string { return "duration" }

func (s *seconds) Set(text string) (err error) {
	if _, failed := strconv.Atoi(text); failed == nil {
		text += "s"
	}
	s.Duration, err = time.ParseDuration(text)
	return err
}

func (s *seconds) String() string {
	if s.Duration < 0 {
		return ""
	}
	return s.Duration.String()
}

func graceFlag(c *cobra.Command, grace *seconds) {
	c.Flags().Var(grace, "grace-period", "Termination grace period of the pods in seconds, or a `TIME` (30s, 5m) rounded up to seconds; negative: the pods' own.")
}

var errInUse = errors.New("containers still use the GPU: stop them")

func drainCommand(node local) *cobra.Command {
	var (
		dryRun  bool
		grace   = seconds{-1}
		timeout time.Duration
	)
	c := gpuCommand(node, &cobra.Command{
		Use:   "drain [NODE] GPU",
		Short: "Cordon a GPU and evict the pods that have a share of it",
		Long: `Cordons a GPU of a node of the cluster, and evicts the pods that have a share of
it, like kubectl drain for a node: it respects PodDisruptionBudgets, and a pod
without a controller is not created again. Pods without a share of the GPU stay.

With one argument it is a GPU of this node. It is cordoned without an API
server, and the containers that use it are listed; stop them yourself.

Exit status: 0 no container has a share of the GPU, or --dry-run; 1 failure,
or something still has a share; 2 invalid usage.`,
		Example: "  kubectl gpuslice drain node-1 0 --dry-run\n  kubectl gpuslice drain node-1 GPU-5a3c --grace-period 1m",
	}, func(c call, args []string) error {
		if len(args) == 2 {
			return c.withCluster(timeout, func(ctx context.Context, connection *cluster.Cluster) error {
				return c.drain(ctx, connection, args[0], args[1], grace.Duration, dryRun)
			})
		}
		held, err := c.node.cordon(c.Command, args[0], true, dryRun)
		if err == nil && held > 0 && !dryRun {
			err = errInUse
		}
		return work(err)
	})
	ofCluster(c, node, "drain NODE GPU", c.Short, drainOfCluster, c.Example)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "Print what would be done, and change nothing.")
	graceFlag(c, &grace)
	c.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "Wait `TIME` for evictions that a budget delays, and for pods to end.")
	return c
}

func (c call) drain(ctx context.Context, connection *cluster.Cluster, node, name string, grace time.Duration, dryRun bool) error {
	uuid, err := connection.GPU(ctx, node, name)
	if err != nil {
		return err
	}
	report := func(format string, args ...any) {
		fmt.Fprintln(c.OutOrStdout(), term.Clean(fmt.Sprintf(format, args...)))
	}
	if dryRun {
		report("GPU %s of node %s would be cordoned", uuid, node)
	} else if err := c.cordonInCluster(ctx, connection, node, uuid, true); err != nil {
		return err
	}
	holders, unread := connection.Holders(ctx, node, uuid)
	if len(holders) == 0 && unread == nil {
		report("no pod has a share of it")
	}
	if dryRun {
		for _, h := range holders {
			report("pod %s would be evicted: it has %d MiB and %d percent of cores", h, h.MemoryMiB, h.Cores)
		}
		return unread
	}
	return errors.Join(unread, connection.Evict(ctx, holders, cluster.Evictions{GracePeriod: grace, Report: report}))
}
