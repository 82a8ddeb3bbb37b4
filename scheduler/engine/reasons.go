package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
)

// Text explains the verdict in one line. It is computed on each call.
func (v *Verdict) Text() string {
	t := make(text, 0, 256).add(v.name, ": ")
	counts := &v.outcome.counts
	switch {
	case v.Fits:
		t = t.add("fits")
	case v.err != nil:
		t = t.add(v.err.Error())
	case v.node == nil || !v.node.registered:
		t = t.add("unknown node")
	case counts[NodeUnregistered] > 0 && v.node.problem != "":
		t = t.add("the node's GPUs can't be read: ", v.node.problem)
	case counts[NodeUnregistered] > 0:
		t = t.add("the node has no GPUs registered: check that the agent runs there")
	case counts[NodeInsufficientDevice] > 0:
		t = t.gpus(len(v.node.gpus.total)).add(", but ", v.containerName(), " requests ").number(int64(v.container().GPUs))
	default:
		t = v.describeReasons(t)
	}
	return string(t)
}

func (v *Verdict) container() *container { return &v.request.containers[v.outcome.container] }

func (v *Verdict) containerName() string {
	k := int(v.outcome.container)
	if k < len(v.request.positions) && v.request.positions[k] < len(v.request.pod.Containers) {
		return fmt.Sprintf("container %q", v.request.pod.Containers[v.request.positions[k]].Name)
	}
	return fmt.Sprintf("container %d of those with GPUs", k+1)
}

func (v *Verdict) describeReasons(t text) text {
	f := v.request.fitter()
	defer f.release()
	f.reset(v.node)
	if len(v.request.containers) > 1 {
		t = t.add(v.containerName(), ": ")
		var o outcome
		f.assignAll(v.request.order, &o) // stops at the container that can't be served
	}
	left := v.outcome.counts
	fitting := len(v.node.gpus.total)
	t = t.gpus(fitting)
	between := ": "
	for {
		most := OK
		for code := OK + 1; code <= CardComputeUnitsExhausted; code++ {
			if left[code] > left[most] {
				most = code
			}
		}
		if most == OK {
			break
		}
		t = f.describe(t.add(between).number(int64(left[most])).add(" "), most, v.container(), int(v.outcome.container))
		fitting -= int(left[most])
		left[most], between = 0, ", "
	}
	if wanted := v.container().GPUs; fitting > 0 && wanted > 1 {
		t = t.add(between).number(int64(fitting)).add(" free enough of the ").number(int64(wanted)).add(" that are requested")
	}
	switch {
	case v.outcome.gaveUp:
		t = t.add(". Its containers fit one by one, but no placement of all of them was found; not all were tried")
	case v.outcome.together:
		t = t.add(". Its containers fit one by one, but not together")
	}
	return t
}

var phrases = [codes]string{
	CardNotHealth: "not healthy", GPUCordoned: "cordoned", GPUEmpty: "registered without memory or without replicas",
	GPUMIGMode: "in MIG mode, which is not shared", CardUUIDMismatch: "with a UUID that the pod excludes",
	CardTimeSlicingExhausted: "without a free replica", ExclusiveDeviceAllocateConflict: "in use, but exclusive use is requested",
	CardComputeUnitsExhausted: "with all cores taken",
}

func (f *fitter) describe(t text, code Code, container *container, i int) text {
	switch code {
	case CardTypeMismatch:
		return t.add("of another type (", f.otherType(), ")")
	case IsolationUnmet:
		return t.add("with the isolation ", f.weakest(), ", but ", f.req.rules.Isolation.String(), " is requested")
	case NumaNotFit:
		return t.add("free enough, but no NUMA node has ").number(int64(container.GPUs)).add(" of them")
	// kube-scheduler uses these texts as fmt formats without arguments: a percent sign would become
	// "%!(MISSING)".
	case CardInsufficientMemory:
		if container.LeastMiB > 0 {
			t = t.add("not free as a whole, with ").number(container.LeastMiB).add(" MiB or more")
		} else if container.MemoryMiB == 0 {
			t = t.add("with less than ").number(int64(container.MemoryPercent)).add(" percent of their memory free")
		} else {
			t = t.add("with less than ").number(container.MemoryMiB).add(" MiB free")
		}
		return t.add(" (most: ").number(f.mostFree(code, i).MemoryMiB).add(" MiB)")
	case CardInsufficientCore:
		return t.add("with less than ").number(int64(container.Cores)).
			add(" percent of cores free (most: ").number(int64(f.mostFree(code, i).Cores)).add(" percent)")
	}
	return t.add(cmp.Or(phrases[code], code.Brief()))
}

// mostFree is the most that is free on a GPU with this reason.
func (f *fitter) mostFree(code Code, i int) (most scheduler.Use) {
	for c := range f.loads {
		if f.usable[c] != OK {
			continue
		}
		total, others := &f.n.gpus.total[c], &f.n.used[c]
		if _, reason := f.req.check(&f.loads[c], i, others, total); reason == code {
			most = most.Max(total.Sub(*others).Sub(f.loads[c].most))
		}
	}
	return most
}

func (f *fitter) otherType() string {
	for c, reason := range f.usable {
		if gpu := &f.n.gpus.inventory.GPUs[c]; reason == CardTypeMismatch {
			if f.req.rules.TypeFits(gpu.Model) {
				return "mode " + cmp.Or(gpu.Mode, "hami-core")
			}
			return gpu.Model
		}
	}
	return ""
}

// weakest is the weakest isolation of the GPUs that lack the requested one.
func (f *fitter) weakest() string {
	weakest := grant.IsolationHardware
	for c, reason := range f.usable {
		if reason == IsolationUnmet {
			weakest = min(weakest, f.n.gpus.inventory.GPUs[c].Isolation)
		}
	}
	if weakest == grant.IsolationAny {
		return "not known"
	}
	return weakest.String()
}

// text avoids allocations: an extender reads thousands of texts at a time.
type text []byte

func (t text) add(parts ...string) text {
	for _, p := range parts {
		t = append(t, p...)
	}
	return t
}

func (t text) number(n int64) text { return strconv.AppendInt(t, n, 10) }

func (t text) gpus(n int) text {
	if n == 1 {
		return t.add("1 GPU")
	}
	return t.number(int64(n)).add(" GPUs")
}

// Summary explains why no node fits: how many nodes have GPUs with each reason, and one node in detail. Empty if some node fits.
func (v *Evaluation) Summary() string {
	if v.err != nil {
		return v.err.Error()
	}
	var counts NodeCounts
	names := v.Nodes()
	for _, name := range names {
		verdict := v.Verdict(name)
		if verdict.Fits {
			return ""
		}
		for _, code := range verdict.outcome.counts.Codes() {
			counts[code]++
		}
	}
	total := len(names)
	if total == 0 {
		return "no node has GPUs registered"
	}
	var reasons []Code
	for code, n := range counts {
		if n > 0 {
			reasons = append(reasons, Code(code))
		}
	}
	slices.SortStableFunc(reasons, func(a, b Code) int { return cmp.Compare(counts[b], counts[a]) })
	var texts []string
	for _, code := range reasons {
		texts = append(texts, fmt.Sprintf("%d: %s", counts[code], code.Brief()))
	}
	var example Verdict
	for _, name := range names {
		if example = v.Verdict(name); len(reasons) > 0 && example.outcome.counts[reasons[0]] > 0 {
			break
		}
	}
	nodes := "1 node"
	if total > 1 {
		nodes = fmt.Sprintf("%d nodes", total)
	}
	return fmt.Sprintf("0 of %s with GPUs fit: %s. For example %s", nodes, strings.Join(texts, ", "), example.Text())
}

// Nodes returns the names of the nodes with GPUs, sorted.
func (v *Evaluation) Nodes() []string { return v.snapshot.Nodes() }

// Nodes returns the names of the nodes with GPUs, sorted.
func (s *Snapshot) Nodes() []string {
	var names []string
	s.each(func(n *node) {
		if len(n.gpus.total) > 0 {
			names = append(names, n.name)
		}
	})
	slices.Sort(names)
	return names
}

// Code is the first check that a GPU failed, in HAMi's order.
type Code uint8

const (
	OK Code = iota
	CardNotHealth
	GPUCordoned
	GPUEmpty // gpuslice: no memory or no replicas registered
	CardTypeMismatch
	GPUMIGMode     // gpuslice: MIG mode is not shared
	IsolationUnmet // gpuslice: less than the pod requests
	NumaNotFit
	CardUUIDMismatch
	CardTimeSlicingExhausted
	ExclusiveDeviceAllocateConflict
	ResourceQuotaNotFit
	CardInsufficientMemory
	CardInsufficientCore
	CardComputeUnitsExhausted
	// The codes below are of nodes.
	NodeInsufficientDevice // fewer GPUs than one container requests
	NodeUnregistered       // no GPUs registered, or unreadable
	codes
)

var names = [codes]string{"OK", "CardNotHealth", "CardCordoned", "GPUEmpty", "CardTypeMismatch", "GPUMIGMode", "IsolationUnmet",
	"NumaNotFit", "CardUuidMismatch", "CardTimeSlicingExhausted", "ExclusiveDeviceAllocateConflict", "ResourceQuotaNotFit", "CardInsufficientMemory",
	"CardInsufficientCore", "CardComputeUnitsExhausted", "NodeInsufficientDevice", "NodeUnregistered"}

// String returns HAMi's name.
func (c Code) String() string {
	if c >= codes {
		return fmt.Sprintf("Code(%d)", uint8(c))
	}
	return names[c]
}

var briefs = [codes]string{"fits", "GPUs are not healthy", "GPUs are cordoned", "GPUs have no memory or no replicas registered",
	"GPUs are of another type", "GPUs are in MIG mode", "GPUs do not have the requested isolation",
	"no NUMA node has enough fitting GPUs", "GPUs are excluded by UUID", "GPUs have no free replica",
	"GPUs are in use, but exclusive use is requested", "the namespace's quota is used up", "GPUs have too little free memory",
	"GPUs have too few free cores", "GPUs have all cores taken", "the node has too few GPUs", "the node has no GPUs registered"}

// Brief has no numbers: kube-scheduler groups nodes by this text in events.
func (c Code) Brief() string {
	if c >= codes {
		return c.String()
	}
	return briefs[c]
}

// Counts counts a node's GPUs by reason.
type Counts [codes]uint16

// NodeCounts counts nodes by their main reason.
type NodeCounts [codes]int

// Codes are the reasons, in the order of the checks.
func (c *Counts) Codes() (all []Code) {
	for code := OK + 1; code < codes; code++ {
		if c[code] > 0 {
			all = append(all, code)
		}
	}
	return all
}

// Main is the most frequent reason; among equals the later check.
func (c *Counts) Main() Code { return mostFrequent((*[codes]uint16)(c)) }

// Main is the most frequent reason; among equals the later check.
func (c *NodeCounts) Main() Code { return mostFrequent((*[codes]int)(c)) }

func mostFrequent[N uint16 | int](c *[codes]N) Code {
	main := OK
	for code := OK + 1; code < codes; code++ {
		if c[code] > 0 && c[code] >= c[main] {
			main = code
		}
	}
	return main
}

// Evictable reports whether evicting pods may help.
func (c *Counts) Evictable() bool {
	for _, code := range [...]Code{NumaNotFit, CardTimeSlicingExhausted, ExclusiveDeviceAllocateConflict, ResourceQuotaNotFit,
		CardInsufficientMemory, CardInsufficientCore, CardComputeUnitsExhausted} {
		if c[code] > 0 {
			return true
		}
	}
	return false
}
