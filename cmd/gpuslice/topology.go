package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia"
)

func topologyCommand() *cobra.Command {
	var (
		asMatrix bool
		out      *output
	)
	c := &cobra.Command{
		Use:   "topology [NODE]",
		Short: "Show how a node's GPUs are connected, and which are free",
		Long: `Shows the tree of this node's GPUs: which are near each other, by PCIe and by
NVLink, and what is left of each. With an argument it is that node of the
cluster. A group is named by how its GPUs reach each other, with the words of
"nvidia-smi topo -m", from near to far:

  PSB   on one board            PHB   across a host bridge, the CPU's
  PIX   across one PCIe switch  NODE  across the host bridges of a NUMA node
  PXB   across several of them  SYS   across the sockets

A GPU is "free" while nothing of it is granted, "shared" while more of it can
be, and "full" when nothing more can be. It is "blocked" while a container is
there whose grant can't be found out, "unhealthy" when the agent has said so,
"cordoned" when "gpuslice cordon" keeps new containers from it on this node, and
"excluded" when it is not offered. "NV4: 0-2" are four NVLinks to each of the
GPUs 0 to 2.

With --matrix it prints the matrix as "nvidia-smi topo -m" does, without NICs.

It comes from the agent's state directory; the driver is not read. For another
node it comes from its Node object and its agent, through the API server: the
processors of the matrix are not known then.

Exit status: 0 it is shown; 1 it could not be read; 2 the call is wrong.`,
		Example: `  gpuslice topology
  gpuslice topology --matrix
  kubectl gpuslice topology node-1
  gpuslice topology -o json | jq '.tree.children[] | {level, free}'`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			where, _, err := readPlace(c, args, 0)
			if err != nil {
				return err
			}
			unknown, sysfs := errNoTopology, os.DirFS("/sys")
			if where.elsewhere { // its processors aren't those of this machine
				unknown, sysfs = errNotTold, nil
			}
			n, f := where.node, where.file
			if asMatrix && !out.forPrograms() && len(f.Topology.UUIDs) == 0 {
				return work(unknown)
			}
			shown := topologyOf(n, f, sysfs)
			return work(out.print(c, shown, func(p page) error {
				if asMatrix {
					return errors.Join(writeMatrix(p, shown.Matrix), noted(p, where.note("the processors next to GPUs", "gpuslice topology --matrix")))
				}
				return writeTree(p, n, shown, unknown)
			}))
		},
	}
	c.Flags().BoolVar(&asMatrix, "matrix", false, "print the matrix in place of the tree")
	clusterFlags(c)
	out = outputFlag(c, formTable, formWide, formJSON, formYAML)
	return c
}

var errNoTopology = errors.New("how the GPUs are connected is not known: node.json doesn't say, or is of an older gpuslice-agent: restart it")

var errNotTold = errors.New("how the GPUs are connected is not known: the Node object doesn't say, or what it says can't be read")

// noted prints a note for people, if there is one.
func noted(p page, text string) error {
	if text == "" {
		return nil
	}
	_, err := fmt.Fprintf(p, "\nnote: %s\n", text)
	return err
}

// readFiles reads the node and the file of its GPUs, which must be there.
func readFiles(c *cobra.Command) (view.Node, node.File, error) {
	n, err := readNode(c)
	if err != nil {
		return n, node.File{}, err
	}
	stateDir, err := c.Flags().GetString("state-dir")
	if err != nil {
		return n, node.File{}, err
	}
	f, err := node.Read(stateDir)
	if err != nil {
		return n, f, work(fmt.Errorf("GPUs: %w", err))
	}
	if len(f.Node.GPUs) == 1 && len(f.Topology.UUIDs) == 0 { // nobody need have asked
		f.Topology = alone(f.Node.GPUs[0].UUID)
	}
	return n, f, nil
}

// topologyShown is the JSON of `gpuslice topology`.
type topologyShown struct {
	Node string `json:"node"`
	// Known is false where nobody has said how the GPUs are connected.
	Known  bool        `json:"known"`
	Tree   branch      `json:"tree"`
	Matrix []matrixGPU `json:"matrix"`
}

func topologyOf(n view.Node, f node.File, sysfs fs.FS) topologyShown {
	return topologyShown{Node: n.Name, Known: len(f.Topology.UUIDs) > 0, Tree: treeOf(n, f), Matrix: matrixOf(f, sysfs)}
}

// writeTree draws the tree.
func writeTree(p page, n view.Node, shown topologyShown, unknown error) error {
	columns := []term.Column{
		{Head: "GPUS"}, {Head: "FREE"}, {Head: "NVLINK", Min: 8}, {Head: "NUMA", Right: true}, {Head: "MODEL", Min: 8},
		{Head: "MEMORY LEFT", Right: true}, {Head: "CORES LEFT", Right: true}, {Head: "CONTAINERS", Right: true},
	}
	if p.Wide {
		columns = append(columns, term.Column{Head: "UUID"})
	}
	t := p.table(columns...)
	root := orDash(n.Name)
	if shown.Tree.Level != "" {
		root += " " + shown.Tree.Level
	}
	drawGroup(t, root, shown.Tree)
	drawChildren(t, p.Wide, "", shown.Tree.Children)
	if err := t.Write(p); err != nil {
		return err
	}
	if !shown.Known && shown.Tree.GPUs > 1 {
		fmt.Fprintf(p, "\nnote: %v\n", unknown)
	}
	return problems(p, n)
}

func drawChildren(t *term.Table, wide bool, indent string, children []branch) {
	for i, b := range children {
		stem, deeper := "├─ ", "│  "
		if i == len(children)-1 {
			stem, deeper = "└─ ", "   "
		}
		if b.GPU == nil {
			drawGroup(t, indent+stem+b.Level, b)
			drawChildren(t, wide, indent+deeper, b.Children)
			continue
		}
		drawGPU(t, wide, indent+stem, *b.GPU)
		for j, d := range b.GPU.MIG {
			stem := "├─ "
			if j == len(b.GPU.MIG)-1 {
				stem = "└─ "
			}
			use := useOf(leafGPU{GPU: d}, func(string) bool { return false })
			row := []any{indent + deeper + stem + "MIG " + d.MIGProfile, useCell(use), "", "", ""}
			t.Row(append(row, left(d, wide)...)...)
		}
	}
}

func drawGroup(t *term.Table, name string, b branch) {
	nvlink := ""
	if b.NVLinks > 0 {
		nvlink = fmt.Sprintf("NV%d", b.NVLinks)
	}
	t.Row(name, fmt.Sprintf("%d/%d", b.Free, b.GPUs), nvlink)
}

func drawGPU(t *term.Table, wide bool, stem string, c leafGPU) {
	numa := "-"
	if c.NUMA != nvidia.NUMAUnknown {
		numa = fmt.Sprint(c.NUMA)
	}
	row := []any{stem + fmt.Sprintf("GPU%d", c.Index), useCell(c.Use), orDash(linksText(c.Links)), numa, c.Model}
	if len(c.MIG) > 0 { // it is had by its MIG devices
		t.Row(row...)
		return
	}
	t.Row(append(row, left(c.GPU, wide)...)...)
}

// left are the columns of what is left of a device.
func left(c view.GPU, wide bool) []any {
	row := []any{
		fmt.Sprintf("%d/%d MiB", max(c.GrantableMiB-c.GrantedMemoryMiB, 0), c.GrantableMiB),
		fmt.Sprintf("%d/%d %%", max(c.GrantableCores-c.GrantedCores, 0), c.GrantableCores),
		fmt.Sprintf("%d/%d", c.GrantedContainers, c.GrantableSlots),
	}
	if wide {
		row = append(row, c.UUID)
	}
	return row
}

func useCell(use string) term.Cell {
	color := map[string]term.Color{useFree: term.Green, useFull: term.Yellow, useCordoned: term.Yellow, useBlocked: term.Red, useUnhealthy: term.Red}[use]
	return term.Cell{Text: use, Color: color}
}
