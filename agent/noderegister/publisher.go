package noderegister

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Config is what a Publisher works with.
type Config struct {
	Client Client
	// NodeName is the name of the Node object.
	NodeName string
	// Node is what is to be told now. While known is false nothing is written.
	Node func() (n Node, known bool)
	// Changed says that Node has changed; it may have a buffer of one, into which is
	// written without waiting. nil: changes are seen at the next look.
	Changed <-chan struct{}
	Options Options
	// Interval is the time between two looks; 0 is 30 s.
	Interval time.Duration
	// Retry is the time from a look that failed to the next, which doubles with each
	// more until it is Interval; 0 is 5 s.
	Retry time.Duration
	// Log is told of what is written, and of failures; nil is silence.
	Log *slog.Logger
}

// settle is the least time between two looks, for changes that come in a row.
const settle = time.Second

// farewell is how long a Publisher that is stopped may take to say so.
const farewell = 3 * time.Second

// Publisher keeps what a Node object says of the node true.
type Publisher struct {
	cfg Config

	mu      sync.Mutex
	labels  map[string]string
	changed chan struct{} // closed when labels is no longer true

	// Of Run's goroutine.
	last     Node // what was to be told at the last look
	known    bool
	failures int
	logged   map[string]bool // the kinds of failures that were logged since the last success
}

// New returns a publisher. An error is one of the config.
func New(c Config) (*Publisher, error) {
	if wrong := validation.IsDNS1123Subdomain(c.NodeName); len(wrong) > 0 {
		return nil, fmt.Errorf("node name %q: %s", c.NodeName, strings.Join(wrong, "; "))
	}
	if c.Interval == 0 {
		c.Interval = 30 * time.Second
	}
	if c.Retry == 0 {
		c.Retry = 5 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Publisher{cfg: c, changed: make(chan struct{}), logged: map[string]bool{}}, nil
}

// Labels are the node's labels at the last look, nobody's to change; nil before the
// first that succeeded.
func (p *Publisher) Labels() map[string]string {
	labels, _ := p.WatchLabels()
	return labels
}

// WatchLabels are Labels, and a channel that is closed when they are no longer true.
func (p *Publisher) WatchLabels() (map[string]string, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.labels, p.changed
}

// setLabels takes over the labels of a look.
func (p *Publisher) setLabels(labels map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.labels != nil && maps.Equal(labels, p.labels) {
		return
	}
	p.labels = maps.Clone(labels)
	if p.labels == nil {
		p.labels = map[string]string{}
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// Run looks until ctx ends. Then it tells schedulers that the node takes no more
// containers, for which it takes 3 seconds at most.
func (p *Publisher) Run(ctx context.Context) {
	for ctx.Err() == nil {
		p.report(ctx, p.look(ctx))
		p.wait(ctx)
	}
	p.leave(ctx)
}

// wait returns when it is time for the next look.
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

// pause is the time to the next look if nothing changes, less up to a tenth of it: the
// agents of a cluster that were started at once shall not ask at once for good.
func (p *Publisher) pause() time.Duration {
	d := p.cfg.Interval
	if p.failures > 0 {
		d = min(d, p.cfg.Retry<<min(p.failures-1, 10))
	}
	return d - rand.N(d/10+1)
}

// look compares what the node says with what it should, and writes the difference.
func (p *Publisher) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return p.write(ctx, false)
}

// leave tells schedulers that the node takes no more containers.
func (p *Publisher) leave(ctx context.Context) {
	if !p.known {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	if err := p.write(ctx, true); err != nil {
		p.cfg.Log.Warn("schedulers were not told that the node is left: they see it when the kubelet does", "node", p.cfg.NodeName, "error", err)
	}
}
