package audit

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/gpu"
)

// Config is what an Auditor works with.
type Config struct {
	// Interval is the time between two looks, and Grace how long a violation may last
	// before Kill ends who does it.
	Interval, Grace time.Duration
	Kill            bool
	// Devices says who has which card and MIG device open (gpu.Cache.Processes).
	Devices func(context.Context) (map[string][]gpu.Process, error)
	// Claims are the ledger's containers that count, without what is looked at here
	// (Damage, AllowedBytes).
	Claims func(context.Context) ([]Claim, error)
	// Inspector says whose processes are.
	Inspector *Inspector
	// Guarded says why it is not known at present which containers there are; nil: it
	// is. Meanwhile nothing is ended.
	Guarded func() error
	// Events tells of pods; optional.
	Events Events
	Log    *slog.Logger
}

// Auditor compares what runs with what was granted. It is a prometheus.Collector.
type Auditor struct {
	config  Config
	log     *slog.Logger
	history *History
	metrics metrics
	// allowed is what a container may have of a device, by both.
	allowed map[[2]string]uint64
	told    map[key]time.Time
	// The problems that were logged last.
	saidDevices, saidClaims, saidLook, saidGuard string

	mu  sync.Mutex
	now []Violation
}

// New makes an auditor.
func New(c Config) *Auditor {
	return &Auditor{
		config: c, log: c.Log, history: NewHistory(c.Grace), metrics: newMetrics(),
		allowed: map[[2]string]uint64{}, told: map[key]time.Time{},
	}
}

// Run looks until the context ends.
func (a *Auditor) Run(ctx context.Context) {
	tick := time.NewTicker(a.config.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			a.Once(ctx, time.Now())
		}
	}
}

// Violations are those that last.
func (a *Auditor) Violations() []Violation {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.now)
}

// Once is one look.
func (a *Auditor) Once(ctx context.Context, now time.Time) {
	began := time.Now()
	look, ok := a.take(ctx)
	if !ok {
		return // what was found before stays: nothing says that it is over
	}
	step := a.history.Step(now, Find(look))
	for _, v := range step.Began {
		a.begin(v, now)
	}
	for _, v := range step.Over {
		delete(a.told, v.key())
		a.log.Info("violation is over", v.attributes()...)
	}
	lasting := a.history.Now()
	for _, v := range lasting {
		if now.Sub(a.told[v.key()]) >= again {
			a.tell(v, now)
		}
	}
	a.metrics.count(lasting)
	a.mu.Lock()
	a.now = lasting
	a.mu.Unlock()
	a.end(ctx, step.Due)
	a.metrics.last.SetToCurrentTime()
	a.metrics.took.Set(time.Since(began).Seconds())
}

// take finds out what runs and what was granted. It is false where nothing could be
// found out. Whoever is on a card is asked for first: a claim that is made meanwhile is
// seen, and of one that is given back the processes are gone.
func (a *Auditor) take(ctx context.Context) (Look, bool) {
	devices, err := a.config.Devices(ctx)
	if ctx.Err() != nil {
		return Look{}, false
	}
	sayOnce(a.log, &a.saidDevices, "not every card is audited", err)
	if devices == nil {
		return Look{}, false
	}
	claims, ok := a.claims(ctx)
	if !ok {
		return Look{}, false
	}
	look := Look{Claims: claims}
	look.Processes, err = a.config.Inspector.Processes(claims, devices)
	sayOnce(a.log, &a.saidLook, "not every process is audited", err)
	for _, c := range claims {
		if !c.Unknown {
			c.Damage = damage(c)
		}
		a.allow(c, look.Processes)
	}
	a.forget(claims)
	return look, true
}

func (a *Auditor) claims(ctx context.Context) (map[string]*Claim, bool) {
	list, err := a.config.Claims(ctx)
	if ctx.Err() != nil {
		return nil, false
	}
	sayOnce(a.log, &a.saidClaims, "nothing is audited", err)
	if err != nil {
		return nil, false
	}
	claims := make(map[string]*Claim, len(list))
	for i := range list {
		claims[list[i].ID] = &list[i]
	}
	return claims, true
}

// allow remembers what a container may have.
func (a *Auditor) allow(c *Claim, processes []Process) {
	for i := range c.Devices {
		d := &c.Devices[i]
		at := [2]string{c.ID, d.UUID}
		var unused Finding
		d.AllowedBytes = allow(a.allowed[at], d.LimitBytes, observe(&unused, c.ID, d.UUID, processes))
		a.allowed[at] = d.AllowedBytes
	}
}

func (a *Auditor) forget(claims map[string]*Claim) {
	for at := range a.allowed {
		if claims[at[0]] == nil {
			delete(a.allowed, at)
		}
	}
}

// end ends who the policy says, each looked at once more.
func (a *Auditor) end(ctx context.Context, due []Violation) {
	if !a.config.Kill || len(due) == 0 {
		return
	}
	if a.config.Guarded != nil {
		err := a.config.Guarded()
		sayOnce(a.log, &a.saidGuard, "nothing is killed before it is known which containers there are", err)
		if err != nil {
			return
		}
	}
	for _, v := range due {
		claims, ok := a.claims(ctx) // as they are now
		if !ok {
			return
		}
		killed := 0
		var errs []error
		for _, o := range v.Offenders {
			done, err := kill(o.Process, func() error { return a.config.Inspector.Still(v, o, claims) })
			if done {
				killed++
			}
			if err != nil {
				errs = append(errs, err)
			}
		}
		a.ended(v, killed, errs)
	}
}

// ended tells of what became of a violation's processes.
func (a *Auditor) ended(v Violation, killed int, errs []error) {
	a.metrics.total.WithLabelValues(string(v.Kind), actionKilled).Add(float64(killed))
	a.metrics.total.WithLabelValues(string(v.Kind), actionFailed).Add(float64(len(errs)))
	if killed > 0 {
		a.log.Warn("processes killed for a violation", append(v.attributes(), "killed", killed)...)
		if a.config.Events != nil && v.Container.Pod != "" {
			a.config.Events.Warn(v.Container, killedReason, "killed for "+reasons[v.Kind]+": "+v.Detail+more(killed-1))
		}
	}
	if len(errs) > 0 {
		a.log.Error("processes not killed", append(v.attributes(), "error", errors.Join(errs...))...)
	}
}
