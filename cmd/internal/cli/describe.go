package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

func describeCommand(node local) *cobra.Command {
	c := &cobra.Command{
		Use:   "describe",
		Short: "Show the details of a GPU or a container",
		Long: `Shows the details of a GPU or a container, of this node or of the cluster.

Exit status: 0 success; 1 not found, or nothing could be read; 2 invalid usage.`,
	}
	if node == nil {
		c.Long = strings.Replace(c.Long, "of this node or of the cluster", "of the cluster", 1)
	}
	c.AddCommand(describeGPUCommand(node), describeContainerCommand(node))
	return parent(c)
}

type facts struct {
	page
	lines  [][2]string
	indent string
}

func (f *facts) add(name, format string, args ...any) {
	for i, arg := range args {
		if text, is := arg.(string); is {
			args[i] = term.Clean(text)
		}
	}
	if value := fmt.Sprintf(format, args...); value != "" {
		f.lines = append(f.lines, [2]string{name, value})
	}
}

// painted is a clean text with colors, which add does not clean.
type painted string

// write writes the lines and removes them.
func (f *facts) write() error {
	w := tabwriter.NewWriter(f, 0, 0, 2, ' ', 0)
	for _, l := range f.lines {
		fmt.Fprintf(w, "%s\t%s\n", f.Paint(term.Bold, f.indent+l[0]+":"), l[1])
	}
	f.lines = nil
	return w.Flush()
}

func (f *facts) part(part, whole float64, text string) painted {
	if whole <= 0 {
		return painted(text)
	}
	return painted(f.Bar(24, part/whole, fmt.Sprintf("%.0f%%", min(100*part/whole, 999))) + "  " + text)
}

// findContainer finds a container by its ID, a prefix of it, its name, NAMESPACE/POD, NAMESPACE/POD/CONTAINER or
// NAMESPACE/POD:CONTAINER.
func findContainer(all []view.Container, target string) (view.Container, error) {
	var found []string
	byName := map[string]view.Container{}
	for _, c := range all {
		if c.ContainerID == target {
			return c, nil
		}
		if isNamed(c, target) {
			name := term.Clean(c.ContainerID + " (" + fullName(c) + ")")
			found, byName[name] = append(found, name), c
		}
	}
	name, err := cluster.One("container", term.Clean(target), found, "gpuslice status -o wide")
	return byName[name], err
}

func isNamed(c view.Container, target string) bool {
	if target == "" {
		return false
	}
	if c.Pod != "" && (c.Pod == target || c.Pod+"/"+c.Name == target || c.Pod+":"+c.Name == target) {
		return true
	}
	return c.Name == target || strings.HasPrefix(c.ContainerID, target) || slices.ContainsFunc(c.Members, func(m view.Member) bool {
		return isNamed(view.Container{ContainerID: m.ContainerID, Pod: m.Pod, Name: m.Name}, target)
	})
}

func fullName(c view.Container) string {
	if c.Pod == "" {
		return name(c)
	}
	return c.Pod + "/" + c.Name
}

func problemsOf(n view.Node, ids ...string) (found []string) {
	for _, text := range n.Problems {
		if slices.ContainsFunc(ids, func(id string) bool { return id != "" && strings.Contains(text, id) }) {
			found = append(found, text)
		}
	}
	return found
}

// gpuDescribed is the JSON of `gpuslice describe gpu`.
type gpuDescribed struct {
	view.GPU
	Node string `json:"node"`
	// Use is as in `gpuslice topology`.
	Use string `json:"use"`
	// Physical is the GPU, also for a MIG device; nil on another node.
	Physical      *hardware.GPU     `json:"physical,omitempty"`
	DriverVersion string            `json:"driverVersion"`
	CUDAVersion   string            `json:"cudaVersion"`
	MIG           []view.GPU        `json:"migDevices,omitempty"`
	Connections   map[string]string `json:"connections,omitempty"` // by the other GPU's name, "GPU1"
	Containers    []view.Container  `json:"containersOnIt"`
	// Note lists what only the node itself reports.
	Note     string   `json:"note,omitempty"`
	Problems []string `json:"problems,omitempty"`

	all  []view.GPU // the node's
	gpu  string     // the UUID of a MIG device's GPU
	numa int
}

func describeGPUCommand(node local) *cobra.Command {
	var (
		out    *output
		called call
	)
	c := &cobra.Command{
		Use:   "gpu [NODE] UUID|INDEX",
		Short: "Show the details of a GPU or a MIG device",
		Long: `Shows the details of a GPU or a MIG device of this node: its properties, the
containers that have a share of it, and its connections.

Name a GPU by its index, its UUID or a prefix of it; a MIG device by its UUID.
With two arguments it is a GPU of that node of the cluster. Its agent and its
Node object report it, through the API server.

Exit status: 0 success; 1 there is no such GPU, or nothing could be read;
2 invalid usage.`,
		Example: `  gpuslice describe gpu 0
  gpuslice describe gpu GPU-5a3c -o yaml
  kubectl gpuslice describe gpu node-1 0`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			from, names, err := called.readSource(args, 1)
			if err != nil {
				return err
			}
			uuid, err := findGPU(from.gpus, names[0])
			if err != nil {
				return work(err)
			}
			d, err := describeGPU(from.node, from.gpus, uuid)
			if err != nil {
				return work(err)
			}
			if from.remote {
				d.Physical = nil // not reported
				d.Problems = from.node.Problems
			}
			d.Note = from.note("its device node, PCI bus ID and compute capability", "gpuslice describe gpu "+uuid)
			return work(out.print(c, d, []string{"gpu/" + uuid}, d.write))
		},
	}
	ofCluster(c, node, "gpu NODE UUID|INDEX", c.Short, gpuOfCluster, "  kubectl gpuslice describe gpu node-1 0")
	out = outputFlag(c, node, true, formTable, formWide)
	called = componentFlags(c, node)
	c.ValidArgsFunction = called.completeGPUs
	return c
}

func describeGPU(n view.Node, f gpusOf, uuid string) (gpuDescribed, error) {
	i := slices.IndexFunc(n.GPUs, func(c view.GPU) bool { return c.UUID == uuid })
	if i < 0 {
		return gpuDescribed{}, fmt.Errorf("GPU %s was removed during the read: try again", uuid)
	}
	d := gpuDescribed{
		GPU: n.GPUs[i], Node: n.Name, DriverVersion: n.DriverVersion, CUDAVersion: n.CUDAVersion,
		Connections: map[string]string{}, Containers: []view.Container{}, all: n.GPUs,
	}
	physical, known := f.Node.GPU(uuid)
	if !known {
		_, physical, known = f.Node.MIGDevice(uuid)
	}
	d.numa = hardware.NUMAUnknown
	if known {
		d.Physical, d.numa = &physical, physical.NUMANode
	}
	if known && physical.UUID != uuid {
		d.gpu = physical.UUID
	}
	d.Use = useOf(leafGPU{GPU: d.GPU}, blocksOf(n))
	for _, leaf := range leaves(n, f) {
		if leaf.UUID == uuid {
			d.Use, d.MIG = leaf.Use, leaf.MIG
		}
	}
	for j, other := range f.Topology.UUIDs {
		if p, known := f.Topology.Pair(physical.UUID, other); known {
			d.Connections[fmt.Sprintf("GPU%d", indexOf(f, other, j))] = connection(p, false)
		}
	}
	about := []string{uuid, physical.UUID}
	for _, c := range n.Containers {
		if holds(c, d) {
			d.Containers = append(d.Containers, c)
			about = append(about, c.ContainerID)
		}
	}
	d.Problems = problemsOf(n, about...)
	return d, nil
}

func holds(c view.Container, d gpuDescribed) bool {
	is := func(uuid string) bool {
		return uuid == d.UUID || slices.ContainsFunc(d.MIG, func(m view.GPU) bool { return m.UUID == uuid })
	}
	if c.State == api.StateBlocking {
		return len(c.Blocks) == 0 || slices.ContainsFunc(c.Blocks, is)
	}
	return slices.ContainsFunc(c.Shares, func(s view.Share) bool { return is(s.UUID) })
}

func (d gpuDescribed) write(p page) error {
	f := facts{page: p}
	f.add("GPU", "%s", label(d.GPU))
	f.add("Node", "%s", d.Node)
	f.add("UUID", "%s", d.UUID)
	f.add("Model", "%s", d.Model)
	health := painted(p.Paint(term.Green, "healthy"))
	if !d.Healthy {
		health = painted(p.Paint(term.Red, "unhealthy: "+term.Clean(d.Unhealthy)))
	}
	f.add("Health", "%s", health)
	use := useCell(d.Use)
	f.add("Use", "%s", painted(p.Paint(use.Color, use.Text)))
	f.add("Physical GPU", "%s", d.gpu)
	if c := d.Physical; c != nil {
		f.add("Device node", "%s", c.DevicePath())
		f.add("PCI bus ID", "%s", cmp.Or(c.PCIBusID, "-"))
	}
	numa := "-"
	if d.numa != hardware.NUMAUnknown {
		numa = fmt.Sprint(d.numa)
	}
	f.add("NUMA node", "%s", numa)
	if d.Physical != nil {
		f.add("Compute capability", "%s", cmp.Or(d.Physical.ComputeCapability, "-"))
	}
	f.add("Driver", "%s, CUDA %s", cmp.Or(d.DriverVersion, "-"), cmp.Or(d.CUDAVersion, "-"))
	f.add("Memory", "%d MiB", d.MemoryMiB)
	part := func(unknown bool, part, whole float64, text string) painted {
		if unknown {
			return "-"
		}
		return f.part(part, whole, text)
	}
	f.add("Memory granted", "%s", part(d.GrantsUnknown, float64(d.GrantedMemoryMiB), float64(d.GrantableMiB), fmt.Sprintf("%d of %d MiB", d.GrantedMemoryMiB, d.GrantableMiB)))
	f.add("Memory used", "%s", part(d.UseUnknown, float64(d.UsedBytes)/(1<<20), float64(d.MemoryMiB), fmt.Sprintf("%d MiB, by its containers' accounting", mebibytes(d.UsedBytes))))
	if d.Telemetry != nil {
		now := telemetry(d.Telemetry)
		f.add("By NVML now", "memory %s, busy %s, %s, %s", now...)
	}
	f.add("Cores granted", "%s", part(d.GrantsUnknown, float64(d.GrantedCores), float64(d.GrantableCores), fmt.Sprintf("%d of %d %%", d.GrantedCores, d.GrantableCores)))
	f.add("Core use", "%s", sourceText(d.ComputeSource))
	f.add("Containers", "%s of %d", granted(d.GPU, d.GrantedContainers), d.GrantableReplicas)
	for _, to := range sortedGPUs(d.Connections) {
		f.add("To "+to, "%s", d.Connections[to])
	}
	if err := f.write(); err != nil {
		return err
	}
	if len(d.MIG) > 0 {
		fmt.Fprintf(p, "\n%s\n", p.Paint(term.Bold, "MIG devices:"))
		if err := gpuTable(p, view.Node{GPUs: d.MIG}); err != nil {
			return err
		}
	}
	fmt.Fprintf(p, "\n%s\n", p.Paint(term.Bold, "Containers:"))
	if err := containerTable(p, view.Node{GPUs: d.all, Containers: d.Containers}); err != nil {
		return err
	}
	return errors.Join(noted(p, d.Note), problems(p, view.Node{Problems: d.Problems}))
}

// sourceText is empty for a source that is not known yet.
func sourceText(source hardware.TimeSource) string {
	switch source {
	case "":
		return ""
	case hardware.TimesByLimiter:
		return "by the limiters of the containers: NVML does not show it"
	}
	return "by NVML (" + string(source) + ")"
}

func sortedGPUs(names map[string]string) []string {
	return slices.SortedFunc(maps.Keys(names), func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
}
