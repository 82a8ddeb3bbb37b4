package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/scheduler/defrag"
)

func defragCommand(node local) *cobra.Command {
	var (
		out           *output
		called        call
		planOnly, yes bool
		timeout       time.Duration
		grace         = seconds{-1}
	)
	c := &cobra.Command{
		Use:   "defrag [NAMESPACE/]POD",
		Short: "Make room for a pod that waits for GPUs",
		Long: `Asks the scheduler which pods to resize or to move so that the pending POD fits,
prints the plan, and carries it out after a confirmation.

A pod is resized in place, down to its annotation gpuslice.io/min-memory. A pod
is moved by an eviction, which respects PodDisruptionBudgets; its controller
creates it again. Until the evicted pods are gone, the GPUs for POD are cordoned
(node annotation hami.io/device-cordon). Pods of higher priority, without a
controller, of a DaemonSet or in a group stay, and those that forbid evictions
by the annotation cluster-autoscaler.kubernetes.io/safe-to-evict. The plan
counts GPUs, quotas, node affinity and taints, but not CPU, memory, pod
affinity or volumes.

A signal ends it: it removes its cordons first, and a second signal keeps them.
Cordons that earlier calls have left, for POD or past their --timeout, are
removed at the beginning, with --plan only listed.

Exit status: 0 the pod has its GPUs, or --plan; 1 failure, there is no plan, or
it was not confirmed; 2 invalid usage.`,
		Example: `  kubectl gpuslice defrag team-a/train --plan
  kubectl gpuslice defrag train -n team-a --yes`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			namespace, name, container, err := podName(args[0])
			if err == nil && container != "" {
				err = fmt.Errorf("%q names a container: remove :%s", args[0], container)
			}
			if err != nil {
				return err
			}
			return called.withCluster(timeout, func(ctx context.Context, connection *cluster.Cluster) error {
				report := func(format string, args ...any) {
					fmt.Fprintln(c.ErrOrStderr(), term.Clean(fmt.Sprintf(format, args...)))
				}
				namespace := cmp.Or(namespace, connection.Namespace)
				if err := connection.Clear(ctx, namespace, name, planOnly, report); err != nil {
					return err
				}
				plan, err := connection.Plan(ctx, namespace, name)
				if err != nil {
					return err
				}
				if err := out.print(c, plan, []string{"pod/" + name}, func(p page) error { return planPage(p, plan) }); err != nil {
					return err
				}
				if planOnly || len(plan.Moves)+len(plan.Resizes) == 0 {
					return nil
				}
				if !yes && !confirmed(c) {
					return errors.New("not confirmed, no pod was changed: answer yes, or use --yes")
				}
				pipe := make(chan os.Signal, 1) // so that a write to a program that has ended does not end this one with its cordons
				signal.Notify(pipe, syscall.SIGPIPE)
				defer signal.Stop(pipe)
				return connection.Carry(ctx, plan, cluster.Evictions{GracePeriod: grace.Duration, Report: report})
			})
		},
	}
	called = componentFlags(c, node)
	c.ValidArgsFunction = called.completePods
	out = outputFlag(c, node, true, formTable)
	c.Flags().BoolVar(&planOnly, "plan", false, "Print the plan, and change nothing.")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "Carry out the plan without a confirmation.")
	graceFlag(c, &grace)
	c.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "Wait `TIME` for evictions that a budget delays, and until the pod is placed.")
	return c
}

func planPage(p page, plan defrag.Plan) error {
	if len(plan.Moves)+len(plan.Resizes) == 0 {
		fmt.Fprintln(p, term.Clean(fmt.Sprintf("pod %s fits on node %s: nothing is to be moved", plan.Pod, plan.Node)))
		return nil
	}
	for _, line := range cluster.Steps(plan) {
		fmt.Fprintln(p, term.Clean(line))
	}
	return nil
}

func confirmed(c *cobra.Command) bool {
	fmt.Fprint(c.ErrOrStderr(), "Do this? [yes/no] ")
	answer := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(c.InOrStdin()).ReadString('\n') // an end of the input is no
		answer <- text
	}()
	select {
	case text := <-answer:
		return strings.EqualFold(strings.TrimSpace(text), "yes")
	case <-c.Context().Done():
		return false
	}
}
