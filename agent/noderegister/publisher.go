package noderegister

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// Conditions returns conditions that the node has, or has not; optional.
	Conditions func() []Condition
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

	last       Node
	known      bool
	capacity   writtenCapacity
	conditions writtenConditions
	failures   int
	logged     map[string]bool
}

func New(c Config) (*Publisher, error) {
	if wrong := validation.IsDNS1123Subdomain(c.NodeName); len(wrong) > 0 {
		return nil, fmt.Errorf("node name %q: %s", c.NodeName, strings.Join(wrong, "; "))
	}
	c.Interval, c.Retry = cmp.Or(c.Interval, 30*time.Second), cmp.Or(c.Retry, 5*time.Second)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
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
	known := map[string]string{}
	maps.Copy(known, labels)
	p.labels.Store(&known)
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

// report logs each kind of failure once until the next success: an API server can be unreachable for
// hours.
func (p *Publisher) report(ctx context.Context, err error) {
	if err == nil {
		if p.failures > 0 {
			p.cfg.Log.Info("node annotations can be updated again", "node", p.cfg.NodeName, "failures", p.failures)
		}
		p.failures = 0
		clear(p.logged)
		return
	}
	if ctx.Err() != nil {
		return
	}
	p.failures++
	kind, hint := explain(err)
	if p.logged[kind] {
		return
	}
	p.logged[kind] = true
	p.cfg.Log.Error("updating the node annotations failed; containers and grants do not depend on them", "node", p.cfg.NodeName, "error", err, "do", hint)
}

func explain(err error) (kind, hint string) {
	reason := apierrors.ReasonForError(err)
	switch {
	case reason == metav1.StatusReasonUnauthorized:
		return string(reason), "check the kubeconfig's credentials, or that the pod's service account exists"
	case reason == metav1.StatusReasonForbidden:
		return string(reason), "apply install/agent-rbac.yaml, and run the agent as its service account"
	case reason == metav1.StatusReasonNotFound:
		return string(reason), "set --node-name to this node's name in `kubectl get nodes`"
	case reason != metav1.StatusReasonUnknown:
		return string(reason), "retrying; no action needed if this does not persist"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout", "retrying; check the connection to the API server"
	default:
		return "unreachable", "retrying; check the address of the API server and the connection to it"
	}
}
