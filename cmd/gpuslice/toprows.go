package main

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/monitor/view"
)

type reading struct {
	at   time.Time
	node view.Node
}

// topShown is the JSON of `gpuslice top`.
type topShown struct {
	Node    string    `json:"node"`
	TakenAt time.Time `json:"takenAt"`
	// IntervalSeconds is the time between the readings; 0: there was only one.
	IntervalSeconds float64  `json:"intervalSeconds"`
	GPUs            []topGPU `json:"gpus"`
	Containers      []topRow `json:"containers"`
	Problems        []string `json:"problems,omitempty"`
}

type topGPU struct {
	view.GPU
	// CoresUsedPercent is by NVML, or else the sum of its containers; nil: not known.
	CoresUsedPercent *float64 `json:"coresUsedPercent,omitempty"`
}

// topRow is a container's share of one GPU with its use.
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
	// CoresUsedPercent is its use of the GPU's time by NVML, or else what was charged to its launches;
	// WaitedPercent is the time in which they waited. Nil: only one reading, or no limit was enforced.
	CoresUsedPercent *float64 `json:"coresUsedPercent,omitempty"`
	WaitedPercent    *float64 `json:"waitedPercent,omitempty"`
	LaunchesPerSec   *float64 `json:"launchesPerSecond,omitempty"`
	Processes        int      `json:"processes"`
	UsageProblem     string   `json:"usageProblem,omitempty"`
}

func (r topRow) key() string { return r.ContainerID + " " + r.UUID }

func (r topRow) memoryPart() float64 {
	if r.MemoryMiB <= 0 {
		return 0
	}
	return float64(r.UsedBytes) / float64(1<<20) / float64(r.MemoryMiB)
}

// topOf compares two readings; the first may be empty.
func topOf(before, now reading) topShown {
	shown := topShown{Node: now.node.Name, TakenAt: now.at.UTC(), GPUs: []topGPU{}, Containers: []topRow{}, Problems: now.node.Problems}
	elapsed := now.at.Sub(before.at)
	if before.at.IsZero() || elapsed < 0 {
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
				r.CoresUsedPercent = s.CoreUsedPercent // includes what no limit counts
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
		if c.Telemetry != nil && c.Telemetry.UtilizationPercent != nil { // of all programs
			busy := float64(*c.Telemetry.UtilizationPercent)
			t.CoresUsedPercent = &busy
		}
		shown.GPUs = append(shown.GPUs, t)
	}
	return shown
}

// rates sets the rates between two readings. A tenant can write the counters, so they are limited.
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
	if is.CorePercent == 0 { // not counted
		return
	}
	r.WaitedPercent = part(was.ThrottledNanoseconds, is.ThrottledNanoseconds)
	stood := was.ComputeNanoseconds == is.ComputeNanoseconds && was.Launches == is.Launches
	if stood && !(was.Enforced && is.Enforced) { // it may have used the GPU without being charged
		return
	}
	r.CoresUsedPercent = part(was.ComputeNanoseconds, is.ComputeNanoseconds)
	const most = 1e8 // a launch takes longer than 10 ns
	if launches := float64(is.Launches-was.Launches) / elapsed.Seconds(); is.Launches >= was.Launches && launches <= most {
		r.LaunchesPerSec = &launches
	}
}

// sortKeys are the values of --sort, in the order of the key s.
var sortKeys = []string{"memory", "cores", "waited", "pod", "gpu"}

// sortRows sorts by a key: numbers descending, names ascending. Equal rows are sorted by name, so that the order is stable.
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
