package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/scheduler"
)

// Text says in one line why the pod does not fit on the node, with the numbers that a
// person needs to change that; or that it fits. It takes a fit to make: it is for what is shown.
func (v *Verdict) Text() string {
	return v.name + ": " + v.why()
}

func (v *Verdict) why() string {
	counts := &v.outcome.counts
	switch {
	case v.Fits:
		return "fits"
	case v.refusal != nil:
		return v.refusal.Error()
	case v.on == nil || !v.on.registered:
		return "the node is not known"
	case counts[NodeUnregistered] > 0 && v.on.problem != "":
		return "the node's cards can't be read: " + v.on.problem
	case counts[NodeUnregistered] > 0:
		return "the node has no cards registered: is the agent running there?"
	case counts[NodeInsufficientDevice] > 0:
		return fmt.Sprintf("%s, and %s wants %d", plural(len(v.on.cards.total), "card"), v.container(), v.need().Cards)
	}
	text := plural(len(v.on.cards.total), "card") + ": " + v.cards()
	if v.outcome.together {
		text += ". Its containers fit one by one, but not together"
	}
	if len(v.of.ask.needs) > 1 {
		text = v.container() + ": " + text
	}
	return text
}

func (v *Verdict) need() *need { return &v.of.ask.needs[v.outcome.need] }

// container names the one that could not be served.
func (v *Verdict) container() string {
	k := int(v.outcome.need)
	if k < len(v.of.positions) && v.of.positions[k] < len(v.of.pod.Containers) {
		return fmt.Sprintf("container %q", v.of.pod.Containers[v.of.positions[k]].Name)
	}
	return fmt.Sprintf("container %d of those with cards", k+1)
}

// cards says how many failed for what, the most first.
func (v *Verdict) cards() string {
	f := v.of.ask.fitter()
	defer f.release()
	f.begin(v.on)
	var o outcome
	f.serve(v.of.ask.order, &o) // up to the container that can't be served
	type line struct {
		count int
		code  Code
		text  string
	}
	var lines []line
	fitting := len(v.on.cards.total)
	for code := OK + 1; code <= CardComputeUnitsExhausted; code++ {
		if n := int(v.outcome.counts[code]); n > 0 {
			lines = append(lines, line{n, code, fmt.Sprintf("%d %s", n, f.says(code, v.need(), int(v.outcome.need)))})
			fitting -= n
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(b.count, a.count) })
	texts := make([]string, 0, len(lines)+1)
	for _, l := range lines {
		texts = append(texts, l.text)
	}
	if wanted := v.need().Cards; fitting > 0 && wanted > 1 {
		texts = append(texts, fmt.Sprintf("%d free enough of the %d that are asked for", fitting, wanted))
	}
	return strings.Join(texts, ", ")
}

// says is a reason in words, with the numbers of those cards that have it.
func (f *fitter) says(code Code, need *need, i int) string {
	var most scheduler.Use // free on any of the cards
	models := ""
	for c := range f.loads {
		total, others := &f.n.cards.total[c], &f.n.used[c]
		why := f.usable[c]
		if why == OK {
			_, why = f.ask.check(&f.loads[c], i, others, total)
		}
		if why != code {
			continue
		}
		most = most.Max(total.Sub(*others).Sub(f.loads[c].most))
		if card := &f.n.cards.inventory.Cards[c]; models == "" {
			models = card.Model
			if f.ask.rules.TypeFits(card.Model) {
				models = "mode " + cmp.Or(card.Mode, "hami-core")
			}
		}
	}
	switch code {
	case CardNotHealth:
		return "not healthy"
	case CardCordoned:
		return "cordoned"
	case CardTypeMismatch:
		return "of another type (" + models + ")"
	case CardMIGMode:
		return "in MIG mode, which is not shared"
	case NumaNotFit:
		return fmt.Sprintf("free enough, but no NUMA node has %d of them", need.Cards)
	case CardUUIDMismatch:
		return "with a UUID that is not wanted"
	case CardTimeSlicingExhausted:
		return "with no slot free"
	case ExclusiveDeviceAllocateConflict:
		return "in use, and a card without others is wanted"
	case CardInsufficientMemory:
		wanted := fmt.Sprintf("%d MiB", need.MemoryMiB)
		if need.MemoryMiB == 0 {
			wanted = fmt.Sprintf("%d%% of their memory", need.MemoryPercent)
		}
		return fmt.Sprintf("with less than %s free (most: %d MiB)", wanted, most.MemoryMiB)
	case CardInsufficientCore:
		return fmt.Sprintf("with less than %d%% of cores free (most: %d%%)", need.Cores, most.Cores)
	case CardComputeUnitsExhausted:
		return "with all cores taken"
	}
	return code.Brief()
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Summary says of all nodes at once why the pod does not fit: by reason, the most frequent
// first, with one node's numbers. Empty where some node has room.
func (v *Evaluation) Summary() string {
	if v.err != nil {
		return v.err.Error()
	}
	type group struct {
		code  Code
		count int
		first string
	}
	var groups [codes]group
	total := 0
	for _, name := range v.Nodes() {
		verdict := v.Verdict(name)
		if verdict.Fits {
			return ""
		}
		total++
		g := &groups[verdict.Reason()]
		if g.count++; g.count == 1 {
			g.code, g.first = verdict.Reason(), name
		}
	}
	if total == 0 {
		return "no node has cards registered"
	}
	slices.SortStableFunc(groups[:], func(a, b group) int { return cmp.Compare(b.count, a.count) })
	var texts []string
	for _, g := range groups {
		if g.count > 0 {
			texts = append(texts, fmt.Sprintf("%d: %s", g.count, g.code.Brief()))
		}
	}
	example := v.Verdict(groups[0].first)
	return fmt.Sprintf("0 of %s with cards fit: %s. For example %s", plural(total, "node"), strings.Join(texts, ", "), example.Text())
}

// Nodes are the names of the nodes that are judged, sorted.
func (v *Evaluation) Nodes() []string { return v.snapshot.Nodes() }

// Nodes are the names of the nodes that have cards, sorted.
func (s *Snapshot) Nodes() []string {
	var names []string
	for _, c := range s.table {
		if c == nil {
			continue
		}
		for _, n := range c.nodes {
			if n != nil && len(n.cards.total) > 0 {
				names = append(names, n.name)
			}
		}
	}
	slices.Sort(names)
	return names
}
