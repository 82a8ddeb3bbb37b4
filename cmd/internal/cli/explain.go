package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/scheduler/engine"
)

func explainCommand(node local) *cobra.Command {
	var (
		out    *output
		called call
	)
	c := &cobra.Command{
		Use:   "explain [NAMESPACE/]POD",
		Short: "Explain why a pod waits for GPUs, or has its GPUs",
		Long: `Explains why a pod waits: for each node with GPUs, how many of them do not fit,
and why, with numbers. For a pod that has GPUs it shows the node, the GPUs, and
the state of the node's GPUs when they were chosen.

For each ResourceClaim of the pod it shows the devices that it has, or what each
device lacks. Selectors are not evaluated.

The scheduler explains it, through the API server, by the present state and not
by that of its last attempt.

Exit status: 0 success; 1 no scheduler answered, or there is no such pod;
2 invalid usage.`,
		Example: `  gpuslice explain team-a/train
  kubectl gpuslice explain train -n team-a -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			namespace, name, container, err := podName(args[0])
			if err == nil && container != "" {
				err = fmt.Errorf("%q names a container, all containers of a pod are on one node: remove :%s", args[0], container)
			}
			if err != nil {
				return err
			}
			return called.withCluster(requestTimeout, func(ctx context.Context, connection *cluster.Cluster) error {
				x, err := connection.Explain(ctx, cmp.Or(namespace, connection.Namespace), name)
				if err != nil {
					return err
				}
				return out.print(c, x, []string{"pod/" + name}, func(p page) error { return explainPage(p, x) })
			})
		},
	}
	called = componentFlags(c, node)
	c.ValidArgsFunction = called.completePods
	out = outputFlag(c, node, true, formTable)
	return c
}

func explainPage(p page, x cluster.Explanation) error {
	fmt.Fprintf(p, "%s\n%s\n", term.Clean(fmt.Sprintf("pod %s: %s", x.Pod, x.State)), term.Clean(x.Text))
	if x.Problem != "" {
		fmt.Fprintf(p, "%s %s\n", p.Paint(term.Red, "problem:"), term.Clean(x.Problem))
	}
	if x.Scheduled != "" {
		fmt.Fprintf(p, "kube-scheduler: %s\n", term.Clean(x.Scheduled))
	}
	if len(x.Nodes) > 0 {
		fmt.Fprintln(p)
		if err := nodeReasons(p, x.Nodes); err != nil {
			return err
		}
	}
	if x.UnknownClaims != "" {
		fmt.Fprintln(p, term.Clean("its ResourceClaims are not known: "+x.UnknownClaims))
	}
	for _, claim := range x.ResourceClaims {
		if err := explainClaim(p, claim); err != nil {
			return err
		}
	}
	for _, h := range x.Holds {
		fmt.Fprintln(p, term.Clean(fmt.Sprintf("container %s holds %s since %s: a kernel runs beyond the share, and others wait", h.Container, h.GPU, moment(h.Since))))
	}
	if x.Choice == nil {
		if x.State == engine.ExplainedBound {
			fmt.Fprintln(p, "the reason for these GPUs is not known: they were chosen before this scheduler started, or by another replica")
		}
		return nil
	}
	fmt.Fprintf(p, "\nchosen at %s, node policy %s, GPU policy %s; GPUs at that time:\n", moment(x.Choice.At), term.Clean(fmt.Sprint(x.Choice.NodePolicy)), term.Clean(fmt.Sprint(x.Choice.GPUPolicy)))
	t := p.table(columns("GPU", "UUID", "CHOSEN", "CONTAINERS", "MEMORY TAKEN", "CORES TAKEN")...)
	for _, gpu := range x.Choice.GPUs {
		chosen := "-"
		if gpu.Chosen {
			chosen = "yes"
		}
		t.Row(gpu.Index, gpu.UUID, chosen, fmt.Sprintf("%d/%d", gpu.Used.Replicas, gpu.Total.Replicas),
			fmt.Sprintf("%d/%d MiB", gpu.Used.MemoryMiB, gpu.Total.MemoryMiB), fmt.Sprintf("%d/%d %%", gpu.Used.Cores, gpu.Total.Cores))
	}
	return t.Write(p)
}

func explainClaim(p page, x cluster.ResourceClaim) error {
	fmt.Fprintf(p, "\n%s\n", term.Clean(fmt.Sprintf("ResourceClaim %s: %s", x.Name, x.Text)))
	if len(x.Allocated) > 0 {
		t := p.table(columns("REQUEST", "POOL", "DEVICE", "READY", "WHY")...)
		for _, d := range x.Allocated {
			t.Row(d.Request, d.Pool, d.Device, cmp.Or(d.Ready, "-"), cmp.Or(d.Text, "-"))
		}
		return t.Write(p)
	}
	for _, r := range x.Requests {
		fmt.Fprintln(p, term.Clean(fmt.Sprintf("request %s: %s", r.Name, r.Text)))
		if len(r.Devices) == 0 {
			continue
		}
		t := p.table(columns("POOL", "DEVICE", "FITS", "WHY")...)
		for _, d := range r.Devices {
			t.Row(d.Pool, d.Device, map[bool]string{true: "yes", false: "no"}[d.Fits], d.Text)
		}
		if err := t.Write(p); err != nil {
			return err
		}
	}
	return nil
}

func nodeReasons(p page, nodes []engine.NodeVerdict) error {
	t := p.table(columns("NODE", "FITS", "WHY")...)
	for _, n := range nodes {
		fits := "no"
		if n.Fits {
			fits = "yes"
		}
		t.Row(n.Node, fits, n.Text)
	}
	return t.Write(p)
}
