package main

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/monitor/view"
)

// reading is a node as it was read at a moment.
type reading struct {
	at   time.Time
	node view.Node
}

// topShown is the JSON of `gpuslice top`.
type topShown struct {
	Node    string    `json:"node"`
	TakenAt time.Time `json:"takenAt"`
	// IntervalSeconds is what the parts of time are of; 0: there was one reading only.
	IntervalSeconds float64  `json:"intervalSeconds"`
	GPUs            []topGPU `json:"gpus"`
	Containers      []topRow `json:"containers"`
	Problems        []string `json:"problems,omitempty"`
}

// topGPU is a GPU, and what its containers had of its compute time.
type topGPU struct {
	view.GPU
	// CoresUsedPercent is what NVML says, or else the sum of what its containers were
	// charged; nil while nobody can say.
	CoresUsedPercent *float64 `json:"coresUsedPercent,omitempty"`
}

// topRow is a container's share of one GPU, with what it had lately.
type topRow struct {
	Pod         string `json:"pod,omitempty"`
	Container   string `json:"container"`
	ContainerID string `json:"containerID"`
	State       string `json:"state"`
	Enforcement string `json:"enforcement"`
	GPU         string `json:"gpu"`
	UUID        string `json:"uuid"`
	UsedBytes   uint64 `json:"usedBytes"`
	MemoryMiB   int64  `json:"memoryMiB"`
	Cores       int    `json:"cores"` // 0: no limit
	// CoresUsedPercent is the part of the GPU's time that it had by NVML, where an agent
	// was asked, or else that its launches were charged; WaitedPercent is that in which they
	// waited for their share. Nil: not known, for there was one reading only, or nothing was
	// counted: the share has no limit, or none was enforced.
	CoresUsedPercent *float64 `json:"coresUsedPercent,omitempty"`
	WaitedPercent    *float64 `json:"waitedPercent,omitempty"`
	LaunchesPerSec   *float64 `json:"launchesPerSecond,omitempty"`
	Processes        int      `json:"processes"`
	// UsageProblem is why nothing is known of its use.
	UsageProblem string `json:"usageProblem,omitempty"`
}

// key identifies a row over readings.
func (r topRow) key() string { return r.ContainerID + " " + r.UUID }

// memoryPart is the part of its memory that it uses.
func (r topRow) memoryPart() float64 {
	if r.MemoryMiB <= 0 {
		return 0
	}
	return float64(r.UsedBytes) / float64(1<<20) / float64(r.MemoryMiB)
}

// topOf is what two readings show; the first may be empty.
func topOf(before, now reading) topShown {
	shown := topShown{Node: now.node.Name, TakenAt: now.at.UTC(), GPUs: []topGPU{}, Containers: []topRow{}, Problems: now.node.Problems}
	elapsed := now.at.Sub(before.at)
	if before.at.IsZero() || elapsed <= 0 {
		elapsed = 0
	}
	shown.IntervalSeconds = elapsed.Seconds()
	last := map[string]view.Share{}
	for _, c := range before.node.Containers {
		for _, s := range c.Shares {
			last[c.ContainerID+" "+s.UUID] = s
		}
	}
	labels := gpuLabels(now.node)
	used := map[string]float64{}
	known := map[string]bool{}
	for _, c := range now.node.Containers {
		for _, s := range c.Shares {
			r := topRow{
				Pod: c.Pod, Container: name(c), ContainerID: c.ContainerID, State: c.State, Enforcement: c.Enforcement,
				GPU: gpu(s.UUID, labels), UUID: s.UUID, UsedBytes: s.UsedBytes, MemoryMiB: s.MemoryMiB, Cores: s.CorePercent,
				Processes: s.Processes, UsageProblem: c.UsageProblem,
			}
			if was, there := last[r.key()]; there && c.UsageProblem == "" {
				r.rates(was, s, elapsed)
			}
			if s.CoreUsedPercent != nil {
				r.CoresUsedPercent = s.CoreUsedPercent // it sees what no limit counts, too
			}
			if r.CoresUsedPercent != nil {
				used[s.UUID] += *r.CoresUsedPercent
				known[s.UUID] = true
			}
			shown.Containers = append(shown.Containers, r)
		}
		if len(c.Shares) == 0 {
			shown.Containers = append(shown.Containers, topRow{
				Pod: c.Pod, Container: name(c), ContainerID: c.ContainerID, State: c.State, Enforcement: c.Enforcement, GPU: blocked(c, labels),
			})
		}
	}
	for _, c := range now.node.GPUs {
		t := topGPU{GPU: c}
		if known[c.UUID] {
			sum := min(used[c.UUID], 100)
			t.CoresUsedPercent = &sum
		}
		if c.Telemetry != nil && c.Telemetry.UtilizationPercent != nil { // of all programs, counted or not
			busy := float64(*c.Telemetry.UtilizationPercent)
			t.CoresUsedPercent = &busy
		}
		shown.GPUs = append(shown.GPUs, t)
	}
	return shown
}

// rates are what a share had between two readings. The counters are a tenant's to
// write: one that went back, or says more than there was, is bounded.
func (r *topRow) rates(was, is view.Share, elapsed time.Duration) {
	if elapsed <= 0 {
		return
	}
	part := func(was, is uint64) *float64 {
		if is < was {
			return nil
		}
		percent := min(100*float64(is-was)/float64(elapsed.Nanoseconds()), 100)
		return &percent
	}
	if is.CorePercent == 0 { // nothing counts it
		return
	}
	r.WaitedPercent = part(was.ThrottledNanoseconds, is.ThrottledNanoseconds)
	stood := was.ComputeNanoseconds == is.ComputeNanoseconds && was.Launches == is.Launches
	if stood && !(was.Enforced && is.Enforced) { // it may have worked all the while
		return
	}
	r.CoresUsedPercent = part(was.ComputeNanoseconds, is.ComputeNanoseconds)
	const most = 1e8 // a launch takes longer than 10 ns
	if launches := float64(is.Launches-was.Launches) / elapsed.Seconds(); is.Launches >= was.Launches && launches <= most {
		r.LaunchesPerSec = &launches
	}
}

// sortKeys are the values of --sort, in the order in which the key s goes through them.
var sortKeys = []string{"memory", "cores", "waited", "pod", "gpu"}

// sortRows sorts by a key: numbers from the largest, names from the first. Rows that are
// equal are in order of their names, so that none jumps about.
func sortRows(rows []topRow, by string, reverse bool) {
	number := func(p *float64) float64 {
		if p == nil {
			return -1
		}
		return *p
	}
	slices.SortStableFunc(rows, func(a, b topRow) int {
		n := 0
		switch by {
		case "memory":
			n = cmp.Compare(b.UsedBytes, a.UsedBytes)
		case "cores":
			n = cmp.Compare(number(b.CoresUsedPercent), number(a.CoresUsedPercent))
		case "waited":
			n = cmp.Compare(number(b.WaitedPercent), number(a.WaitedPercent))
		case "gpu":
			n = cmp.Compare(a.GPU, b.GPU)
		}
		if n == 0 {
			n = cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container), cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.GPU, b.GPU))
		}
		if reverse {
			return -n
		}
		return n
	})
}

// filterRows are the rows that have a text somewhere in what is shown of them, in
// letters of whatever case.
func filterRows(rows []topRow, text string) []topRow {
	if text == "" {
		return rows
	}
	text = strings.ToLower(text)
	kept := []topRow{}
	for _, r := range rows {
		if strings.Contains(strings.ToLower(strings.Join([]string{r.Pod, r.Container, r.ContainerID, r.State, r.Enforcement, r.UUID}, " ")), text) {
			kept = append(kept, r)
		}
	}
	return kept
}
