package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// containerDescribed is the JSON of `gpuslice describe container`.
type containerDescribed struct {
	view.Container
	Node string `json:"node"`
	// Directory has its files: the record of its grant, its limits and its accounting; empty
	// where it is another node's.
	Dir    string           `json:"directory,omitempty"`
	Shares []shareDescribed `json:"shares"`
	// Oversubscribe says that it may have more memory than the GPU, in the host's.
	Oversubscribe bool `json:"oversubscribe"`
	// Note says what a node alone knows, where it is not this one.
	Note     string   `json:"note,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

// shareDescribed is a share with what its limits file and its accounting say of it.
type shareDescribed struct {
	view.Share
	GPU   string `json:"gpu"` // the GPU's index
	Model string `json:"model,omitempty"`
	// Limit is what is enforced; nil where the limits file can't be read.
	Limit *limitDescribed `json:"limit,omitempty"`
	// Parts are what UsedBytes is made of; the rest is linear memory.
	Parts map[string]uint64 `json:"parts,omitempty"`
}

// limitDescribed is what is enforced of a share.
type limitDescribed struct {
	MemoryBytes    uint64 `json:"memoryBytes"`
	PhysicalBytes  uint64 `json:"physicalBytes,omitempty"`
	Cores          uint32 `json:"cores"`
	CoresCeiling   uint32 `json:"coresCeiling,omitempty"`
	Policy         string `json:"policy"`
	Priority       string `json:"priority"`
	Contended      bool   `json:"contended"`
	Blocked        bool   `json:"blocked"`
	ElasticPercent uint16 `json:"elasticPercent,omitempty"`
}

func describeContainerCommand() *cobra.Command {
	var out *output
	c := &cobra.Command{
		Use:   "container ID|NAME|NAMESPACE/POD[/CONTAINER]",
		Short: "Show all that is known of a container",
		Long: `Shows all that is known of one container of this node: what it is granted, what
is enforced, and what it uses.

A container is named by its id or the beginning of that, by its name, by its pod
where that has one with a share, or by pod and container.

With --cluster, and as kubectl gpuslice, it is a pod's of the cluster, named by
its pod or by pod and container: its node's agent is asked, through the API
server. What its limits file has is known on its node alone.

Exit status: 0 it is shown; 1 there is no such container, or several, or nothing
could be read; 2 the call is wrong.`,
		Example: `  gpuslice describe container default/train/main
  gpuslice describe container 3f2a9c -o yaml
  kubectl gpuslice describe container train -n team-a`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeContainers,
		RunE: func(c *cobra.Command, args []string) error {
			wide, err := isWide(c)
			if err != nil {
				return err
			}
			if wide {
				where, found, err := findElsewhere(c, args[0])
				if err != nil {
					return err
				}
				d := describeContainer(where.node, found, "")
				d.Note = where.note("what its limits are and its memory is made of", "gpuslice describe container "+term.Clean(found.ContainerID))
				return work(out.print(c, d, d.write))
			}
			n, err := readNode(c)
			if err != nil {
				return err
			}
			found, err := findContainer(n.Containers, args[0])
			if err != nil {
				return work(err)
			}
			stateDir, err := c.Flags().GetString("state-dir")
			if err != nil {
				return err
			}
			ledger, err := ledger.OpenReadOnly(stateDir)
			if err != nil {
				return work(err)
			}
			d := describeContainer(n, found, ledger.Dir(found.ContainerID))
			return work(out.print(c, d, d.write))
		},
	}
	out = outputFlag(c, formTable, formJSON, formYAML)
	clusterFlags(c)
	c.Flags().Bool("cluster", false, "a pod's container of the cluster, by the API server; so it is too as kubectl gpuslice, and where there is no state directory and a kubeconfig")
	return c
}

// describeContainer describes a container whose files are in the directory; none of another
// node's.
func describeContainer(n view.Node, c view.Container, dir string) containerDescribed {
	d := containerDescribed{Container: c, Node: n.Name, Dir: dir, Shares: []shareDescribed{}, Problems: problemsOf(n, c.ContainerID)}
	var (
		limits limiter.Limits
		states []limiter.CoreState
		usage  limiter.Usage
	)
	if dir != "" {
		var err, errCores error
		limits, err = limiter.ReadLimits(limiter.LimitsPath(dir))
		states, errCores = limiter.ReadCores(limiter.LimitsPath(dir))
		if err := errors.Join(err, errCores); err != nil && c.State == string(ledger.StateActive) {
			d.Problems = append(d.Problems, "its limits: "+strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		usage, _ = limiter.ReadUsage(limiter.UsagePath(dir)) // the view reports the error
	}
	d.Oversubscribe = limits.Oversubscribe
	labels := gpuLabels(n)
	models := map[string]string{}
	for _, gpu := range n.GPUs {
		models[gpu.UUID] = gpu.Model
	}
	for i, s := range c.Shares {
		share := shareDescribed{Share: s, GPU: gpu(s.UUID, labels), Model: models[s.UUID]}
		if i < len(limits.Devices) && i < len(states) {
			share.Limit = limitOfShare(limits.Devices[i], states[i])
		}
		if i < len(usage.Devices) {
			share.Parts = partsOf(usage.Devices[i])
		}
		d.Shares = append(d.Shares, share)
	}
	return d
}

func limitOfShare(l limiter.DeviceLimit, s limiter.CoreState) *limitDescribed {
	policies := map[limiter.Policy]string{limiter.PolicyDefault: "default", limiter.PolicyForce: "force", limiter.PolicyDisable: "disable"}
	priorities := map[limiter.Priority]string{limiter.PriorityHigh: "high", limiter.PriorityLow: "low"}
	return &limitDescribed{
		MemoryBytes: l.MemoryLimitBytes, PhysicalBytes: l.PhysicalBytes, Cores: l.CorePercent, CoresCeiling: l.CoreSoftPercent,
		Policy: policies[l.Policy], Priority: priorities[l.Priority],
		Contended: s.Contended, Blocked: s.Blocked, ElasticPercent: s.ElasticPercent,
	}
}

// partsOf are the parts that there is something of.
func partsOf(u limiter.DeviceUsage) map[string]uint64 {
	parts := map[string]uint64{}
	for name, bytes := range map[string]uint64{
		"contexts": u.ContextBytes, "pools": u.PoolBytes, "virtual memory": u.VMMBytes, "graphs": u.GraphBytes,
		"arrays": u.ArrayBytes, "spilled": u.SpilledBytes,
	} {
		if bytes > 0 {
			parts[name] = bytes
		}
	}
	return parts
}

// partNames is their order.
var partNames = []string{"contexts", "pools", "virtual memory", "graphs", "arrays", "spilled"}

// policyTexts say when a share of compute time is enforced.
var policyTexts = map[string]string{
	"default": "while others use the GPU, too", "force": "always", "disable": "never",
}

// write writes it for people.
func (d containerDescribed) write(p page) error {
	f := facts{page: p}
	f.add("Container", "%s", term.Clean(orDash(d.Name)))
	f.add("ID", "%s", term.Clean(d.ContainerID))
	if d.Pod != "" {
		f.add("Pod", "%s (%s)", term.Clean(d.Pod), term.Clean(orDash(d.PodUID)))
	}
	f.add("Node", "%s", term.Clean(d.Node))
	f.add("State", "%s", p.Paint(stateColor(d.State), d.State))
	f.add("Enforcement", "%s", term.Clean(orDash(d.Enforcement)))
	f.add("Booked by", "%s", term.Clean(orDash(d.Owner)))
	f.add("Since", "%s", moment(d.CreatedAt))
	f.add("Directory", "%s", term.Clean(d.Dir))
	if d.State == string(ledger.StateBlocking) {
		f.add("Blocks", "%s", blocked(d.Container, nil))
	}
	if d.Oversubscribe {
		f.add("Oversubscribes", "it may have memory in the host's")
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

func (s shareDescribed) write(p page) error {
	title := "GPU " + s.GPU
	if s.Model != "" {
		title += " (" + s.Model + ")"
	}
	fmt.Fprintf(p, "\n%s\n", p.Paint(term.Bold, term.Clean(title)+":"))
	f := facts{page: p, indent: "  "}
	f.add("UUID", "%s", term.Clean(s.UUID))
	f.add("Memory", "%s", f.part(float64(s.UsedBytes)/(1<<20), float64(s.MemoryMiB), fmt.Sprintf("%d of %d MiB", mebibytes(s.UsedBytes), s.MemoryMiB)))
	var parts []string
	for _, name := range partNames {
		if bytes := s.Parts[name]; bytes > 0 {
			parts = append(parts, fmt.Sprintf("%s %d MiB", name, mebibytes(bytes)))
		}
	}
	f.add("Of it", "%s", strings.Join(parts, ", "))
	if s.ResidueBytes > 0 {
		f.add("Beyond it", "%d MiB that the driver sees (taken off the limit)", mebibytes(s.ResidueBytes))
	}
	f.add("Refused", "%d allocations", s.RefusedAllocations)
	if l := s.Limit; l != nil {
		if enforced := mebibytes(l.MemoryBytes); int64(enforced) != s.MemoryMiB {
			f.add("Enforced", "%d MiB", enforced)
		}
		if l.PhysicalBytes > 0 {
			f.add("On the GPU", "%d MiB of it at most", mebibytes(l.PhysicalBytes))
		}
		f.add("Cores", "%s", l.coresText())
		f.add("Priority", "%s", l.Priority)
		f.add("Now", "%s", l.nowText())
	} else {
		f.add("Cores", "%s", cores(s.CorePercent))
	}
	if s.CoreUsedPercent != nil {
		f.add("Cores used", "%.0f %% of the GPU's time, by NVML", *s.CoreUsedPercent)
	}
	f.add("Compute time", "%s charged, %s waited, %d launches", span(s.ComputeNanoseconds), span(s.ThrottledNanoseconds), s.Launches)
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

// nowText is what the agent has found out about the GPU.
func (l limitDescribed) nowText() string {
	var is []string
	if l.Contended {
		is = append(is, "others use the GPU, too")
	}
	if l.Blocked {
		is = append(is, "it waits for somebody of higher priority")
	}
	if l.ElasticPercent > 0 {
		is = append(is, fmt.Sprintf("its share is %d %%", l.ElasticPercent))
	}
	return strings.Join(is, "; ")
}
