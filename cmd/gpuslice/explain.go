package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/scheduler/engine"
)

func explainCommand() *cobra.Command {
	var out *output
	c := &cobra.Command{
		Use:   "explain [NAMESPACE/]POD",
		Short: "Say why a pod waits for GPUs, or has the ones that it has",
		Long: `Says why a pod waits: of each node with GPUs, how many of them don't do, and for
what reason, with numbers. Of a pod that has GPUs it says where, which, and what
the node's GPUs were when they were chosen.

The scheduler is asked, through the API server: it says how things are now, not
how they were when it last tried.

Exit status: 0 it is explained, whatever the answer is; 1 nobody could be asked, or
there is no such pod; 2 the call is wrong.`,
		Example: `  gpuslice explain team-a/train
  kubectl gpuslice explain train -n team-a -o json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			namespace, name, container, err := podName(args[0])
			if err == nil && container != "" {
				err = fmt.Errorf("%q: all containers of a pod are on one node: leave :%s out", args[0], container)
			}
			if err != nil {
				return err
			}
			connection, err := connect(c)
			if err != nil {
				return work(err)
			}
			ctx, cancel := context.WithTimeout(c.Context(), answerPatience)
			defer cancel()
			x, err := connection.Explain(ctx, cmp.Or(namespace, connection.Namespace), name)
			if err != nil {
				return work(err)
			}
			return work(out.print(c, x, func(p page) error { return explainPage(p, x) }))
		},
	}
	askFlags(c)
	out = outputFlag(c, formTable, formJSON, formYAML)
	return c
}

// explainPage prints an explanation for people.
func explainPage(p page, x cluster.Explanation) error {
	fmt.Fprintf(p, "pod %s: %s\n%s\n", x.Pod, x.State, term.Clean(x.Text))
	if x.Problem != "" {
		fmt.Fprintf(p, "%s %s\n", p.Paint(term.Red, "problem:"), term.Clean(x.Problem))
	}
	if x.Scheduled != "" {
		fmt.Fprintf(p, "kube-scheduler says: %s\n", term.Clean(x.Scheduled))
	}
	if len(x.Nodes) > 0 {
		fmt.Fprintln(p)
		if err := nodeReasons(p, x.Nodes); err != nil {
			return err
		}
	}
	if x.Choice == nil {
		if x.State == engine.ExplainedBound {
			fmt.Fprintln(p, "why these GPUs isn't known any more: they were chosen before this scheduler started, or by another replica")
		}
		return nil
	}
	fmt.Fprintf(p, "\nchosen at %s, among nodes by %s, among the node's GPUs by %s; they were then:\n", moment(x.Choice.At), x.Choice.NodePolicy, x.Choice.GPUPolicy)
	t := p.table(term.Column{Head: "GPU"}, term.Column{Head: "UUID"}, term.Column{Head: "CHOSEN"}, term.Column{Head: "CONTAINERS"}, term.Column{Head: "MEMORY TAKEN"}, term.Column{Head: "CORES TAKEN"})
	for _, gpu := range x.Choice.GPUs {
		chosen := "-"
		if gpu.Chosen {
			chosen = "yes"
		}
		t.Row(gpu.Index, gpu.UUID, chosen, fmt.Sprintf("%d/%d", gpu.Used.Slots, gpu.Total.Slots),
			fmt.Sprintf("%d/%d MiB", gpu.Used.MemoryMiB, gpu.Total.MemoryMiB), fmt.Sprintf("%d/%d %%", gpu.Used.Cores, gpu.Total.Cores))
	}
	return t.Write(p)
}

func nodeReasons(p page, nodes []engine.NodeVerdict) error {
	t := p.table(term.Column{Head: "NODE"}, term.Column{Head: "FITS"}, term.Column{Head: "WHY"})
	for _, n := range nodes {
		fits := "no"
		if n.Fits {
			fits = "yes"
		}
		t.Row(n.Node, fits, n.Text)
	}
	return t.Write(p)
}
