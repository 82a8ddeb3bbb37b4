package metrics

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/gpuslice/gpuslice/monitor/view"
)

// patience is how long the ledger may be locked by others before a scrape goes without.
const patience = 5 * time.Second

// GathererConfig is where the numbers come from.
type GathererConfig struct {
	// View reads the node.
	View func(context.Context) (view.Node, error)
	// Connected says whether the node is guarded.
	Connected func() bool
	// Leaked are the ids of containers that are gone and have not been given back.
	Leaked func() []string
}

// Gatherer gives the metrics of cards and containers as they are when it is asked. It
// implements prometheus.TransactionalGatherer, and is safe for concurrent use.
type Gatherer struct {
	config GathererConfig
	used   sync.Pool // of *answer
}

var _ prometheus.TransactionalGatherer = &Gatherer{}

// NewGatherer makes one.
func NewGatherer(c GathererConfig) *Gatherer {
	return &Gatherer{config: c, used: sync.Pool{New: func() any { return &answer{} }}}
}

// reading is the node as a scrape found it.
type reading struct {
	node      view.Node
	connected bool
	leaked    int
}

// Gather implements prometheus.TransactionalGatherer.
func (g *Gatherer) Gather() ([]*dto.MetricFamily, func(), error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	node, err := g.config.View(ctx)
	if err != nil {
		return nil, func() {}, fmt.Errorf("the node's cards and containers: %w", err)
	}
	r := reading{node: node, connected: g.config.Connected()}
	gone := g.config.Leaked()
	for _, c := range r.active() {
		if slices.Contains(gone, c.ContainerID) {
			r.leaked++
		}
	}
	a := g.used.Get().(*answer)
	families := a.fill(&r)
	return families, func() {
		a.reading = nil
		g.used.Put(a)
	}, nil
}

// answer is the memory of one scrape, used again by later ones.
type answer struct {
	reading  *reading
	families []*dto.MetricFamily
	made     map[string]*dto.MetricFamily
	cells    []cell
	pairs    []dto.LabelPair
	lists    []*dto.LabelPair
	texts    []string
}

// cell is one number with all that Prometheus' types want around it.
type cell struct {
	metric  dto.Metric
	gauge   dto.Gauge
	counter dto.Counter
	value   float64
}

// reserve makes room, so that nothing moves while it is filled.
func (a *answer) reserve(cells, pairs, texts int) {
	if cap(a.cells) < cells {
		a.cells = make([]cell, 0, cells+cells/4)
	}
	if cap(a.pairs) < pairs {
		a.pairs = make([]dto.LabelPair, 0, pairs+pairs/4)
		a.lists = make([]*dto.LabelPair, 0, pairs+pairs/4)
	}
	if cap(a.texts) < texts {
		a.texts = make([]string, 0, texts+texts/4)
	}
	a.cells, a.pairs, a.lists, a.texts = a.cells[:0], a.pairs[:0], a.lists[:0], a.texts[:0]
}

// fill makes the families of a reading.
func (a *answer) fill(r *reading) []*dto.MetricFamily {
	shares := 0
	for i := range r.node.Containers {
		shares += len(r.node.Containers[i].Shares)
	}
	cards := len(r.node.Cards)
	of := make([][]labelled, len(nodeFamilies))
	own := 0
	for i, f := range nodeFamilies {
		of[i] = f.values(r)
		own += len(of[i])
	}
	a.reading, a.families = r, a.families[:0]
	a.reserve(own+cards*len(cardFamilies)+shares*len(shareFamilies), own+cards*len(cardLabels)+shares*len(shareLabels), own+cards+2*len(r.node.Containers))
	for i, f := range nodeFamilies {
		a.nodeFamily(f, of[i])
	}
	labels := a.cardLabels(r)
	for i := range cardFamilies {
		f := &cardFamilies[i]
		into := a.family(&f.Family, cards)
		for j := range r.node.Cards {
			if value, known := f.value(&r.node.Cards[j]); known {
				a.add(into, labels[j*len(cardLabels):][:len(cardLabels):len(cardLabels)], value)
			}
		}
	}
	labels = a.shareLabels(r)
	for i := range shareFamilies {
		a.shareFamily(&shareFamilies[i], r, labels, shares)
	}
	// Prometheus knows no family without a number.
	all := slices.DeleteFunc(a.families, func(f *dto.MetricFamily) bool { return len(f.Metric) == 0 })
	slices.SortFunc(all, func(x, y *dto.MetricFamily) int { return strings.Compare(*x.Name, *y.Name) })
	return all
}

func (a *answer) nodeFamily(f nodeFamily, values []labelled) {
	into := a.family(&f.Family, len(values))
	for _, v := range values {
		var labels []*dto.LabelPair
		if len(f.Labels) > 0 {
			first := len(a.lists)
			a.pair(&f.Labels[0], a.text(v.label))
			labels = a.lists[first:len(a.lists):len(a.lists)]
		}
		a.add(into, labels, v.value)
	}
}

func (a *answer) shareFamily(f *shareFamily, r *reading, labels []*dto.LabelPair, shares int) {
	into := a.family(&f.Family, shares)
	for i := range r.node.Containers {
		c := &r.node.Containers[i]
		for j := range c.Shares {
			of := labels[:len(shareLabels):len(shareLabels)]
			labels = labels[len(shareLabels):]
			if value, known := f.value(c, &c.Shares[j]); known {
				a.add(into, of, value)
			}
		}
	}
}

// cardLabels are those of each card, one after the other, each in the order of names.
func (a *answer) cardLabels(r *reading) []*dto.LabelPair {
	first := len(a.lists)
	for i := range r.node.Cards {
		c := &r.node.Cards[i]
		for j, value := range []*string{a.text(strconv.Itoa(c.Index)), &c.Model, &r.node.Name, &c.UUID} {
			a.pair(&cardLabels[j], value)
		}
	}
	return a.lists[first:]
}

// shareLabels are the same of each container's share of a card.
func (a *answer) shareLabels(r *reading) []*dto.LabelPair {
	first := len(a.lists)
	for i := range r.node.Containers {
		c := &r.node.Containers[i]
		namespace, pod, _ := strings.Cut(c.Pod, "/")
		inNamespace, ofPod := a.text(namespace), a.text(pod)
		name := &c.Name
		if c.Name == "" {
			name = &c.ContainerID // as people are shown it
		}
		for j := range c.Shares {
			for k, value := range [...]*string{name, &c.ContainerID, inNamespace, &r.node.Name, ofPod, &c.Shares[j].UUID} {
				a.pair(&shareLabels[k], value)
			}
		}
	}
	return a.lists[first:]
}

func (a *answer) pair(name, value *string) {
	a.pairs = a.pairs[:len(a.pairs)+1]
	p := &a.pairs[len(a.pairs)-1]
	p.Name, p.Value = name, value
	a.lists = append(a.lists, p)
}

func (a *answer) text(s string) *string {
	a.texts = append(a.texts, s)
	return &a.texts[len(a.texts)-1]
}

// family is an empty family that has room for some numbers.
func (a *answer) family(f *Family, room int) *dto.MetricFamily {
	family := a.made[f.Name]
	if family == nil {
		if a.made == nil {
			a.made = map[string]*dto.MetricFamily{}
		}
		family = &dto.MetricFamily{Name: &f.Name, Help: &f.Help, Type: f.kind().Enum()}
		a.made[f.Name] = family
	}
	family.Metric = slices.Grow(family.Metric[:0], room)
	a.families = append(a.families, family)
	return family
}

func (a *answer) add(to *dto.MetricFamily, labels []*dto.LabelPair, value float64) {
	a.cells = a.cells[:len(a.cells)+1]
	c := &a.cells[len(a.cells)-1]
	c.value = value
	c.metric.Label, c.metric.Gauge, c.metric.Counter = labels, nil, nil
	if *to.Type == dto.MetricType_COUNTER {
		c.counter.Value, c.metric.Counter = &c.value, &c.counter
	} else {
		c.gauge.Value, c.metric.Gauge = &c.value, &c.gauge
	}
	to.Metric = append(to.Metric, &c.metric)
}
