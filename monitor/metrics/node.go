package metrics

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// readTimeout is how long a scrape waits for the ledger's lock.
const readTimeout = 5 * time.Second

type NodeConfig struct {
	View func(context.Context) (view.Node, error)
	// Connected reports whether the agent is connected to the container runtime.
	Connected func() bool
	// Orphans returns the IDs of containers that are gone and still have a claim.
	Orphans func() []string
	// Legacy adds the names and units of other programs.
	Legacy []Legacy
}

// Node is the prometheus.Collector of a node's GPUs and containers.
type Node struct {
	config   NodeConfig
	families []family
	descs    []*prometheus.Desc
}

// NewNode returns a collector that reads the node at each scrape.
func NewNode(c NodeConfig) *Node {
	n := &Node{config: c, families: familiesWith(c.Legacy)}
	for _, f := range n.families {
		n.descs = append(n.descs, prometheus.NewDesc(f.Name, f.Help, f.Labels, nil))
	}
	return n
}

func (n *Node) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range n.descs {
		to <- desc
	}
}

func (n *Node) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	node, err := n.config.View(ctx)
	if err != nil {
		to <- prometheus.NewInvalidMetric(n.descs[0], fmt.Errorf("read GPUs and containers of the node: %w", err))
		return
	}
	r := &reading{node: node, connected: n.config.Connected()}
	orphans := n.config.Orphans()
	for _, c := range r.active() {
		if slices.Contains(orphans, c.ContainerID) {
			r.orphans++
		}
	}
	for i := range n.families {
		n.families[i].collect(r, n.descs[i], to)
	}
}

func (f *family) collect(r *reading, desc *prometheus.Desc, to chan<- prometheus.Metric) {
	kind := prometheus.GaugeValue
	if f.Counter {
		kind = prometheus.CounterValue
	}
	rows := f.rows(r)
	values := make([]string, len(f.labels)) // NewConstMetric copies them
	for i := range rows {
		value, known := f.value(&rows[i])
		if !known {
			continue
		}
		for j, l := range f.labels {
			values[j] = l.value(r, &rows[i])
		}
		metric, err := prometheus.NewConstMetric(desc, kind, value, values...)
		if err != nil {
			metric = prometheus.NewInvalidMetric(desc, err)
		}
		to <- metric
	}
}

type reading struct {
	node      view.Node
	connected bool
	orphans   int
}

func (r *reading) active() (all []*view.Container) {
	for i := range r.node.Containers {
		if c := &r.node.Containers[i]; c.State == string(ledger.StateActive) {
			all = append(all, c)
		}
	}
	return all
}
