package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

func topologyCommand(node local) *cobra.Command {
	var (
		asMatrix bool
		out      *output
		called   call
	)
	c := &cobra.Command{
		Use:   "topology [NODE]",
		Short: "Show how a node's GPUs are connected, and which are free",
		Long: `Shows the tree of this node's GPUs: how PCIe and NVLink connect them, and what
is free on each. With an argument it shows that node of the cluster. A group has
the name of the connection between its GPUs, as in "nvidia-smi topo -m", from
near to far:

  PSB   on one board            PHB   across a host bridge, the CPU's
  PIX   across one PCIe switch  NODE  across the host bridges of a NUMA node
  PXB   across several of them  SYS   across the sockets

A GPU is "free" while nothing of it is granted, "shared" while more can be
granted, and "full" otherwise. It is "blocked" by a container with an unknown
grant, "unhealthy" by the agent's report, "cordoned" by "gpuslice cordon", and
"excluded" when it is not offered. "NV4: 0-2" means four NVLinks to each of the
GPUs 0 to 2.

With --matrix it prints the matrix like "nvidia-smi topo -m", without NICs.

It reads the agent's state directory and not the driver. For another node it
reads the Node object and requests the rest from the agent, through the API
server; the matrix has no CPUs then.

Exit status: 0 success; 1 failure; 2 invalid usage.`,
		Example: `  gpuslice topology
  gpuslice topology --matrix
  kubectl gpuslice topology node-1
  gpuslice topology -o json | jq '.tree.children[] | {level, free}'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			from, _, err := called.readSource(args, 0)
			if err != nil {
				return err
			}
			unknown, sysfs := errNoTopology, os.DirFS("/sys")
			if from.remote { // /sys is of this machine
				unknown, sysfs = errNoRemoteTopology, nil
			}
			n, f := from.node, from.gpus
			if asMatrix && !out.forPrograms() && len(f.Topology.UUIDs) == 0 {
				return work(unknown)
			}
			shown := topologyOf(n, f, sysfs)
			return work(out.print(c, shown, namesOf(view.Node{GPUs: n.GPUs}), func(p page) error {
				if asMatrix {
					return errors.Join(writeMatrix(p, shown.Matrix), noted(p, from.note("the CPUs next to GPUs", "gpuslice topology --matrix")))
				}
				return writeTree(p, n, shown, unknown)
			}))
		},
	}
	ofCluster(c, node, "topology NODE", c.Short, topologyOfCluster, "  kubectl gpuslice topology node-1\n  kubectl gpuslice topology node-1 --matrix")
	c.Flags().BoolVar(&asMatrix, "matrix", false, "Print the matrix instead of the tree.")
	called = componentFlags(c, node)
	c.ValidArgsFunction = called.completeNodes
	out = outputFlag(c, node, true, formTable, formWide)
	return c
}

var (
	errNoTopology       = errors.New("the connections of the GPUs are not in node.json: restart gpuslice-agent")
	errNoRemoteTopology = errors.New("the connections of the GPUs are not in the Node object: restart gpuslice-agent on that node")
)

func noted(p page, text string) error {
	if text == "" {
		return nil
	}
	_, err := fmt.Fprintf(p, "\nnote: %s\n", text)
	return err
}

// topologyShown is the JSON of `gpuslice topology`.
type topologyShown struct {
	Node string `json:"node"`
	// Known is false if the connections are not known.
	Known  bool        `json:"known"`
	Tree   branch      `json:"tree"`
	Matrix []matrixGPU `json:"matrix"`
}

func topologyOf(n view.Node, f gpusOf, sysfs fs.FS) topologyShown {
	return topologyShown{Node: n.Name, Known: len(f.Topology.UUIDs) > 0, Tree: treeOf(n, f), Matrix: matrixOf(f, sysfs)}
}

func writeTree(p page, n view.Node, shown topologyShown, unknown error) error {
	t := p.table(
		term.Column{Head: "GPUS"}, term.Column{Head: "FREE"}, term.Column{Head: "NVLINK", Min: 8}, term.Column{Head: "NUMA", Right: true},
		term.Column{Head: "MODEL", Min: 8}, term.Column{Head: "MEMORY LEFT", Right: true}, term.Column{Head: "CORES LEFT", Right: true},
		term.Column{Head: "CONTAINERS", Right: true})
	if p.Wide {
		t.Columns = append(t.Columns, term.Column{Head: "UUID"})
	}
	root := cmp.Or(n.Name, "-")
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
	t.Row(name, fmt.Sprintf("%s/%d", unless(b.Unknown > 0, "%d", b.Free), b.GPUs), nvlink)
}

func drawGPU(t *term.Table, wide bool, stem string, c leafGPU) {
	numa := "-"
	if c.NUMA != hardware.NUMAUnknown {
		numa = fmt.Sprint(c.NUMA)
	}
	row := []any{stem + fmt.Sprintf("GPU%d", c.Index), useCell(c.Use), cmp.Or(linksText(c.Links), "-"), numa, c.Model}
	if len(c.MIG) > 0 { // its MIG devices have rows
		t.Row(row...)
		return
	}
	t.Row(append(row, left(c.GPU, wide)...)...)
}

// left returns the columns of a device's free share.
func left(c view.GPU, wide bool) []any {
	row := []any{
		fmt.Sprintf("%s/%d MiB", granted(c, max(c.GrantableMiB-c.GrantedMemoryMiB, 0)), c.GrantableMiB),
		fmt.Sprintf("%s/%d %%", granted(c, max(c.GrantableCores-c.GrantedCores, 0)), c.GrantableCores),
		fmt.Sprintf("%s/%d", granted(c, c.GrantedContainers), c.GrantableReplicas),
	}
	if wide {
		row = append(row, c.UUID)
	}
	return row
}

func useCell(use string) term.Cell {
	color := map[string]term.Color{useFree: term.Green, useFull: term.Yellow, useCordoned: term.Yellow, useBlocked: term.Red, useUnhealthy: term.Red}[use]
	if use == useUnknown {
		use = "-"
	}
	return term.Cell{Text: use, Color: color}
}

type matrixGPU struct {
	Index int    `json:"index"`
	UUID  string `json:"uuid"`
	// To has the connection to each GPU; "X" to itself.
	To []string `json:"to"`
	// CPUs is a list of the nearest CPUs in the kernel's format; empty: not known.
	CPUs string `json:"cpuAffinity,omitempty"`
	NUMA int    `json:"numaNode"`
}

func matrixOf(f gpusOf, sysfs fs.FS) []matrixGPU {
	gpus := []matrixGPU{}
	for i, uuid := range f.Topology.UUIDs {
		c := matrixGPU{Index: indexOf(f, uuid, i), UUID: uuid, NUMA: hardware.NUMAUnknown}
		if physical, known := f.Node.GPU(uuid); known {
			c.NUMA, c.CPUs = physical.NUMANode, cpusOf(sysfs, physical)
		}
		for j := range f.Topology.UUIDs {
			c.To = append(c.To, connection(f.Topology.Pairs[i][j], i == j))
		}
		gpus = append(gpus, c)
	}
	return gpus
}

func connection(p hardware.Pair, self bool) string {
	switch {
	case self:
		return "X"
	case p.NVLinks > 0:
		return fmt.Sprintf("NV%d", p.NVLinks)
	}
	return p.Level.String()
}

// cpusOf returns the CPUs next to a GPU, by its PCI device or else its NUMA node in sysfs.
func cpusOf(sysfs fs.FS, c hardware.GPU) string {
	if sysfs == nil { // of another node
		return ""
	}
	files := []string{}
	if c.PCIBusID != "" {
		files = append(files, path.Join("bus/pci/devices", hardware.SysfsBusID(c.PCIBusID), "local_cpulist"))
	}
	if c.NUMANode != hardware.NUMAUnknown {
		files = append(files, fmt.Sprintf("devices/system/node/node%d/cpulist", c.NUMANode))
	}
	for _, file := range files {
		if text, err := fs.ReadFile(sysfs, file); err == nil && strings.TrimSpace(string(text)) != "" {
			return strings.TrimSpace(string(text))
		}
	}
	return ""
}

const matrixLegend = `
Legend:

  X    = Self
  SYS  = across the sockets (the interconnect between NUMA nodes)
  NODE = across the PCIe host bridges of one NUMA node
  PHB  = across one PCIe host bridge (the CPU's)
  PXB  = across several PCIe switches, and no host bridge
  PIX  = across one PCIe switch
  PSB  = on one board
  NV#  = by # NVLinks
`

// writeMatrix prints the matrix with the columns and tabs of nvidia-smi, for programs that parse them.
func writeMatrix(p page, gpus []matrixGPU) error {
	heads := []string{}
	for _, c := range gpus {
		heads = append(heads, fmt.Sprintf("GPU%d", c.Index))
	}
	heads = append(heads, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
	var b strings.Builder
	fmt.Fprintf(&b, "\t%s\n", p.Paint(term.Underline, strings.Join(heads, "\t")))
	for _, c := range gpus {
		fmt.Fprintf(&b, "GPU%d", c.Index)
		for _, to := range c.To {
			if to == "X" {
				to = " X "
			}
			b.WriteString("\t" + to)
		}
		cpus, numa := cmp.Or(c.CPUs, "N/A"), "N/A"
		if c.NUMA != hardware.NUMAUnknown {
			numa = fmt.Sprint(c.NUMA)
		}
		fmt.Fprintf(&b, "\t%s\t%s\t\tN/A\n", cpus, numa)
	}
	b.WriteString(matrixLegend)
	_, err := fmt.Fprint(p, b.String())
	return err
}
