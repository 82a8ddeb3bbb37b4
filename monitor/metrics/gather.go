package metrics

import (
	"context"
	"fmt"
	"slices"
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
	// Legacy are those whose names and units are told too.
	Legacy []Legacy
}

// Gatherer gives the metrics of GPUs and containers as they are when it is asked. It
// implements prometheus.TransactionalGatherer, and is safe for concurrent use.
type Gatherer struct {
	config GathererConfig
	groups []group
	used   sync.Pool // of *answer
}

var _ prometheus.TransactionalGatherer = &Gatherer{}

// NewGatherer makes one.
func NewGatherer(c GathererConfig) *Gatherer {
	return &Gatherer{config: c, groups: groupsWith(c.Legacy), used: sync.Pool{New: func() any { return &answer{} }}}
}

// reading is the node as a scrape found it.
type reading struct {
	node      view.Node
	connected bool
	leaked    int
}

// tells says whether a program's names and units are told.
func (g *Gatherer) tells(l Legacy) bool { return slices.Contains(g.config.Legacy, l) }

// Gather implements prometheus.TransactionalGatherer.
func (g *Gatherer) Gather() ([]*dto.MetricFamily, func(), error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	node, err := g.config.View(ctx)
	if err != nil {
		return nil, func() {}, fmt.Errorf("the node's GPUs and containers: %w", err)
	}
	r := reading{node: node, connected: g.config.Connected()}
	gone := g.config.Leaked()
	for _, c := range r.active() {
		if slices.Contains(gone, c.ContainerID) {
			r.leaked++
		}
	}
	a := g.used.Get().(*answer)
	return a.fill(&r, g.groups), func() { g.used.Put(a) }, nil
}

// answer is the memory of one scrape, used again by later ones.
type answer struct {
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
func (a *answer) reserve(cells, pairs int) {
	if cap(a.cells) < cells {
		a.cells = make([]cell, 0, cells+cells/4)
	}
	if cap(a.pairs) < pairs {
		a.pairs = make([]dto.LabelPair, 0, pairs+pairs/4)
		a.lists = make([]*dto.LabelPair, 0, pairs+pairs/4)
		a.texts = make([]string, 0, pairs+pairs/4)
	}
	a.cells, a.pairs, a.lists, a.texts = a.cells[:0], a.pairs[:0], a.lists[:0], a.texts[:0]
}

// fill makes the families of a reading.
func (a *answer) fill(r *reading, groups []group) []*dto.MetricFamily {
	rows := make([][]row, len(groups))
	cells, pairs := 0, 0
	for i := range groups {
		rows[i] = groups[i].rows(r)
		cells += len(rows[i]) * len(groups[i].families)
		pairs += len(rows[i]) * len(groups[i].labels)
	}
	a.families = a.families[:0]
	a.reserve(cells, pairs)
	for i := range groups {
		a.group(r, &groups[i], rows[i])
	}
	// Prometheus knows no family without a number.
	all := slices.DeleteFunc(a.families, func(f *dto.MetricFamily) bool { return len(f.Metric) == 0 })
	slices.SortFunc(all, func(x, y *dto.MetricFamily) int { return strings.Compare(*x.Name, *y.Name) })
	return all
}

// group makes the families of a group. Its labels are the same for all of them.
func (a *answer) group(r *reading, g *group, rows []row) {
	first, width := len(a.lists), len(g.labels)
	for i := range rows {
		for j := range g.labels {
			a.texts = append(a.texts, g.labels[j].value(r, &rows[i]))
			a.pairs = a.pairs[:len(a.pairs)+1]
			p := &a.pairs[len(a.pairs)-1]
			p.Name, p.Value = &g.labels[j].name, &a.texts[len(a.texts)-1]
			a.lists = append(a.lists, p)
		}
	}
	labels := a.lists[first:]
	for i := range g.families {
		f := &g.families[i]
		into := a.family(&f.Family, len(rows))
		for j := range rows {
			if value, known := f.value(&rows[j]); known {
				a.add(into, labels[j*width:][:width:width], value)
			}
		}
	}
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
