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
		Short: "Say why a pod waits for cards, or has the ones that it has",
		Long: `Says why a pod waits: of each node with cards, how many of them don't do, and for
what reason, with numbers. Of a pod that has cards it says where, which, and what
the node's cards were when they were chosen.

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
			fmt.Fprintln(p, "why these cards isn't known any more: they were chosen before this scheduler started, or by another replica")
		}
		return nil
	}
	fmt.Fprintf(p, "\nchosen at %s, among nodes by %s, among the node's cards by %s; they were then:\n", moment(x.Choice.At), x.Choice.NodePolicy, x.Choice.CardPolicy)
	t := p.table(term.Column{Head: "GPU"}, term.Column{Head: "UUID"}, term.Column{Head: "CHOSEN"}, term.Column{Head: "CONTAINERS"}, term.Column{Head: "MEMORY TAKEN"}, term.Column{Head: "CORES TAKEN"})
	for _, card := range x.Choice.Cards {
		chosen := "-"
		if card.Chosen {
			chosen = "yes"
		}
		t.Row(card.Index, card.UUID, chosen, fmt.Sprintf("%d/%d", card.Used.Slots, card.Total.Slots),
			fmt.Sprintf("%d/%d MiB", card.Used.MemoryMiB, card.Total.MemoryMiB), fmt.Sprintf("%d/%d %%", card.Used.Cores, card.Total.Cores))
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
