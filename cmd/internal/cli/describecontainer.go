package cli

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

// containerDescribed is the JSON of `gpuslice describe container`.
type containerDescribed struct {
	view.Container
	Node string `json:"node"`
	// Dir has its record, limits and accounting; empty on another node.
	Dir    string           `json:"directory,omitempty"`
	Shares []shareDescribed `json:"shares"`
	// Oversubscribe: it may use host memory beyond the GPU's.
	Oversubscribe bool `json:"oversubscribe"`
	// Note lists what only the node itself reports.
	Note     string   `json:"note,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

type shareDescribed struct {
	view.Share
	GPU   string `json:"gpu"` // the GPU's index
	Model string `json:"model,omitempty"`
	// ComputeSource is the GPU's.
	ComputeSource hardware.TimeSource `json:"computeSource,omitempty"`
	// Limit is nil if the limits file cannot be read.
	Limit *limitDescribed `json:"limit,omitempty"`
	// Parts are the kinds of memory in UsedBytes; the rest is linear memory.
	Parts map[string]uint64 `json:"parts,omitempty"`
}

type limitDescribed struct {
	MemoryBytes   uint64 `json:"memoryBytes"`
	PhysicalBytes uint64 `json:"physicalBytes,omitempty"`
	Cores         uint32 `json:"cores"`
	CoresCeiling  uint32 `json:"coresCeiling,omitempty"`
	Policy        string `json:"policy"`
	Priority      string `json:"priority"`
	// Unmeasured: no agent measures residue.
	Unmeasured bool `json:"unmeasured,omitempty"`
}

func describeContainerCommand(node local) *cobra.Command {
	var (
		out    *output
		called call
	)
	c := &cobra.Command{
		Use:   "container ID|NAME|NAMESPACE/POD[/CONTAINER]",
		Short: "Show the details of a container",
		Long: `Shows the details of a container of this node: what it is granted, what is
enforced, and what it uses.

Name the container by its ID or a prefix of it, by its name, by its pod, or by
pod and container.

With --all-nodes, and with kubectl gpuslice, name a container of the cluster by
its pod or by pod and container. The agent of its node reports it, through the
API server. Only the node itself reports what the limits file has.

Exit status: 0 success; 1 no container or several match, or nothing could be
read; 2 invalid usage.`,
		Example: `  gpuslice describe container default/train/main
  gpuslice describe container 3f2a9c -o yaml
  kubectl gpuslice describe container train -n team-a`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			show := func(d containerDescribed) error {
				return work(out.print(c, d, []string{nameOf(d.Container)}, d.write))
			}
			if called.allNodes() {
				from, found, err := called.findRemote(args[0])
				if err != nil {
					return err
				}
				d := describeContainer(from.node, found)
				d.Note = from.note("the limits and the kinds of memory", "gpuslice describe container "+term.Clean(cmp.Or(found.ContainerID, found.Pod)))
				return show(d)
			}
			n, err := node.view(c.Context(), stateDir(c))
			if err != nil {
				return work(called.orCluster(err))
			}
			found, err := findContainer(n.Containers, args[0])
			if err != nil {
				return work(err)
			}
			d := describeContainer(n, found)
			if err := node.describe(&d, stateDir(c)); err != nil {
				return work(err)
			}
			return show(d)
		},
	}
	ofCluster(c, node, "container [NAMESPACE/]POD[:CONTAINER]", c.Short, containerOfCluster, "  kubectl gpuslice describe container train -n team-a\n  kubectl gpuslice describe container team-a/train:main -o yaml")
	out = outputFlag(c, node, true, formTable)
	called = nodesFlags(c, node)
	c.ValidArgsFunction = called.completeContainers
	if node != nil {
		c.Flags().Lookup("all-nodes").Usage = "Find the container in the cluster. This is the default on a machine that has a kubeconfig and no state directory."
	}
	return c
}

func describeContainer(n view.Node, c view.Container) containerDescribed {
	d := containerDescribed{Container: c, Node: n.Name, Shares: []shareDescribed{}, Problems: problemsOf(n, c.ContainerID)}
	labels := gpuLabels(n)
	gpus := map[string]view.GPU{}
	for _, gpu := range n.GPUs {
		gpus[gpu.UUID] = gpu
	}
	for _, s := range c.Shares {
		d.Shares = append(d.Shares, shareDescribed{Share: s, GPU: gpu(s.UUID, labels), Model: gpus[s.UUID].Model, ComputeSource: gpus[s.UUID].ComputeSource})
	}
	return d
}

// partNames are the kinds of memory, in the order of the output.
var partNames = []string{"contexts", "pools", "virtual memory", "graphs", "arrays", "spilled"}

var policyTexts = map[string]string{
	"default": "while other containers use the GPU", "force": "always", "disable": "never",
}

func (d containerDescribed) write(p page) error {
	f := facts{page: p}
	f.add("Container", "%s", cmp.Or(d.Name, "-"))
	f.add("ID", "%s", cmp.Or(d.ContainerID, "-"))
	if d.Pod != "" {
		f.add("Pod", "%s (%s)", d.Pod, cmp.Or(d.PodUID, "-"))
	}
	if len(d.Members) > 1 {
		for _, m := range d.Members {
			f.add("Shared with", "%s/%s (%s)", m.Pod, m.Name, m.ContainerID)
		}
	}
	f.add("Node", "%s", d.Node)
	f.add("State", "%s", painted(p.Paint(stateColor(d.State), term.Clean(d.State))))
	f.add("Enforcement", "%s", cmp.Or(d.Enforcement, "-"))
	f.add("Reserved by", "%s", cmp.Or(d.Owner, "-"))
	f.add("Since", "%s", moment(d.CreatedAt))
	f.add("Directory", "%s", d.Dir)
	if d.State == api.StateBlocking {
		f.add("Blocks", "%s", blocked(d.Container, nil))
	}
	if d.Oversubscribe {
		f.add("Oversubscribes", "can use host memory")
	}
	if err := f.write(); err != nil {
		return err
	}
	for _, s := range d.Shares {
		if err := s.write(p); err != nil {
			return err
		}
	}
	return errors.Join(noted(p, d.Note), problems(p, view.Node{Problems: d.Problems}))
}

func (s shareDescribed) unaccounted() string {
	switch {
	case strings.HasPrefix(s.UUID, "MIG-"):
		return "not measured in a MIG device"
	case s.ResidueBytes > 0:
		return fmt.Sprintf("%d MiB in the driver, subtracted from the limit", mebibytes(s.ResidueBytes))
	case s.Limit != nil && s.Limit.Unmeasured:
		return "measured by each process, as a part of its contexts"
	}
	return ""
}

func (s shareDescribed) write(p page) error {
	title := "GPU " + s.GPU
	if s.Model != "" {
		title += " (" + s.Model + ")"
	}
	fmt.Fprintf(p, "\n%s\n", p.Paint(term.Bold, term.Clean(title)+":"))
	f := facts{page: p, indent: "  "}
	f.add("UUID", "%s", s.UUID)
	if s.UseUnknown {
		f.add("Memory", "- of %d MiB", s.MemoryMiB)
		f.add("Cores", "%s", cores(s.CorePercent))
		return f.write()
	}
	f.add("Memory", "%s", f.part(float64(s.UsedBytes)/(1<<20), float64(s.MemoryMiB), fmt.Sprintf("%d of %d MiB", mebibytes(s.UsedBytes), s.MemoryMiB)))
	var parts []string
	for _, name := range partNames {
		if bytes := s.Parts[name]; bytes > 0 {
			parts = append(parts, fmt.Sprintf("%s %d MiB", name, mebibytes(bytes)))
		}
	}
	f.add("Parts", "%s", strings.Join(parts, ", "))
	f.add("Unaccounted", "%s", s.unaccounted())
	f.add("Refused", "%d allocations", s.RefusedAllocations)
	if l := s.Limit; l != nil {
		if enforced := mebibytes(l.MemoryBytes); int64(enforced) != s.MemoryMiB {
			f.add("Enforced", "%d MiB", enforced)
		}
		if l.PhysicalBytes > 0 {
			f.add("On the GPU", "at most %d MiB", mebibytes(l.PhysicalBytes))
		}
		f.add("Cores", "%s", l.coresText())
		f.add("Priority", "%s", l.Priority)
	} else {
		f.add("Cores", "%s", cores(s.CorePercent))
	}
	if s.CoreUsedPercent != nil {
		f.add("Cores used", "%.0f %% of the GPU's time, %s", *s.CoreUsedPercent, cmp.Or(sourceText(s.ComputeSource), "by NVML"))
	}
	f.add("Compute time", "%s with work, %s waited, %d launches", span(s.ComputeNanoseconds), span(s.ThrottledNanoseconds), s.Launches)
	if !s.HoldsSince.IsZero() {
		f.add("Holds the GPU", "since %s: a kernel runs beyond the share, and others wait", moment(s.HoldsSince))
	}
	if !s.LastLaunch.IsZero() {
		f.add("Last launch", "%s", moment(s.LastLaunch))
	}
	f.add("Processes", "%d", s.Processes)
	return f.write()
}

func (l limitDescribed) coresText() string {
	if l.Cores == 0 {
		return "not limited"
	}
	text := fmt.Sprintf("%d %%, enforced %s", l.Cores, policyTexts[l.Policy])
	if l.CoresCeiling > 0 {
		text += fmt.Sprintf("; up to %d %% of borrowed time", l.CoresCeiling)
	}
	return text
}
