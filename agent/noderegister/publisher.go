package noderegister

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

type Config struct {
	Client   Client
	NodeName string
	// Node returns the current state. While known is false nothing is written.
	Node func() (n Node, known bool)
	// Changed receives a value after a change of Node. Optional: without it changes are found at
	// the next interval.
	Changed <-chan struct{}
	Options Options
	// Interval between two readings; 0 is 30 s.
	Interval time.Duration
	// Retry is the pause after a failure, doubled up to Interval; 0 is 5 s.
	Retry time.Duration
	Log   *slog.Logger
}

const settle = time.Second

// farewell limits the last write of a stopped Publisher.
const farewell = 3 * time.Second

// Publisher keeps the annotations and labels of a Node object current.
type Publisher struct {
	cfg Config

	labels atomic.Pointer[map[string]string]

	last     Node
	known    bool
	failures int
	logged   map[string]bool
}

func New(c Config) (*Publisher, error) {
	if wrong := validation.IsDNS1123Subdomain(c.NodeName); len(wrong) > 0 {
		return nil, fmt.Errorf("node name %q: %s", c.NodeName, strings.Join(wrong, "; "))
	}
	c.Interval, c.Retry = cmp.Or(c.Interval, 30*time.Second), cmp.Or(c.Retry, 5*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Publisher{cfg: c, logged: map[string]bool{}}, nil
}

// Labels returns the node's labels at the last reading, read-only; nil before the first.
func (p *Publisher) Labels() map[string]string {
	if labels := p.labels.Load(); labels != nil {
		return *labels
	}
	return nil
}

func (p *Publisher) setLabels(labels map[string]string) {
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	p.labels.Store(&labels)
}

// Run updates the node until ctx ends; then it reports the devices as unhealthy, within 3 seconds.
func (p *Publisher) Run(ctx context.Context) {
	for ctx.Err() == nil {
		p.report(ctx, p.look(ctx))
		p.wait(ctx)
	}
	p.leave(ctx)
}

func (p *Publisher) wait(ctx context.Context) {
	pause := p.pause()
	least := min(settle, pause)
	select {
	case <-ctx.Done():
		return
	case <-time.After(least):
	}
	select {
	case <-ctx.Done():
	case <-p.cfg.Changed:
	case <-time.After(pause - least):
	}
}

// pause varies by up to a tenth, so that agents which started together do not call the API server
// together.
func (p *Publisher) pause() time.Duration {
	d := p.cfg.Interval
	if p.failures > 0 {
		d = min(d, p.cfg.Retry<<min(p.failures-1, 10))
	}
	return d - rand.N(d/10+1)
}

func (p *Publisher) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return p.write(ctx, false)
}

func (p *Publisher) leave(ctx context.Context) {
	if !p.known {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	if err := p.write(ctx, true); err != nil {
		p.cfg.Log.Warn("marking the devices unhealthy failed: schedulers notice when the kubelet reports no devices", "node", p.cfg.NodeName, "error", err)
	}
}
