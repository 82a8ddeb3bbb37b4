package engine

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/gpuslice/gpuslice/scheduler"
)

// WriteText writes the state as tables.
func (s State) WriteText(to io.Writer) error {
	for _, p := range s.Problems {
		fmt.Fprintf(to, "! %s%s: %s\n", p.Node, p.Pod, p.Text)
	}
	t := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tGPU\tMODEL\tMEMORY MiB\tCORES %\tSLOTS\tSTATE")
	for _, n := range s.Nodes {
		name := n.Name
		if !n.Registered {
			name += " (gone)"
		}
		if len(n.GPUs) == 0 {
			fmt.Fprintf(t, "%s\tno GPUs\n", name)
		}
		for _, c := range n.GPUs {
			fmt.Fprintf(t, "%s\t%s\t%s\t%d/%d\t%d/%d\t%d/%d\t%s\n", name, c.UUID, c.Model,
				c.Used.MemoryMiB, c.MemoryMiB, c.Used.Cores, c.Cores, c.Used.Slots, c.Slots, condition(c.GPU))
		}
	}
	fmt.Fprintln(t, "\nPOD\tNODE\tPHASE\tCONTAINER\tGPU\tMEMORY MiB\tCORES %\tUNTIL")
	for _, n := range s.Nodes {
		for _, p := range n.Pods {
			until := ""
			if p.Expires != nil {
				until = p.Expires.UTC().Format("15:04:05 MST") + " for " + p.Owner
			}
			for i, shares := range p.Containers {
				for _, share := range shares {
					fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%d\t%d\t%s\n", p.Pod, n.Name, p.Phase, i, share.UUID, share.MemoryMiB, share.CorePercent, until)
				}
			}
		}
	}
	return t.Flush()
}

func condition(c scheduler.GPU) string {
	switch {
	case !c.Healthy:
		return "not healthy"
	case c.Cordoned:
		return "cordoned"
	}
	return "ok"
}
