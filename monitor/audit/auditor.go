package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/nvidia"
)

// Config is what an Auditor works with.
type Config struct {
	// Interval is the time between two looks, and Grace how long a violation may last
	// before Kill ends who does it.
	Interval, Grace time.Duration
	Kill            bool
	// Devices says who has which GPU and MIG device open (nvidia.Cache.Processes).
	Devices func(context.Context) (map[string][]nvidia.Process, error)
	// Claims are the ledger's containers that count, without what Devices and the look itself
	// find out.
	Claims func(context.Context) ([]Claim, error)
	// Granted are the devices of a claim, with its limits as they are now.
	Granted func(*Claim) ([]Device, error)
	// Locks finds locks and leases on the files of a claim (limiter.Holder.Locks).
	Locks func(*Claim) ([]limiter.Lock, error)
	// Inspector says whose processes are.
	Inspector *Inspector
	// Guarded says why it is not known at present which containers there are; nil: it
	// is. Meanwhile nothing is ended.
	Guarded func() error
	// AllowedFile keeps over a restart what containers may have that have more than their
	// limits, which were lowered; empty: nothing does.
	AllowedFile string
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
	allowed *allowed
	look    int
	damaged map[string]bool // containers whose file was spoilt in the last look
	stamps  map[string]stamp
	told    map[key]time.Time
	killed  map[orphans.Process]bool // and perhaps not gone yet
	// The problems that were logged last.
	saidDevices, saidClaims, saidLook, saidGuard, saidAllowed string

	mu  sync.Mutex
	now []Violation
	// resized are containers whose usage file was cut back, with the looks that are to find it damaged.
	resized map[string]int
	cut     map[string]int // of these, those that the present look is to find
}

// New makes an auditor.
func New(c Config) *Auditor {
	allowed, err := openAllowed(c.AllowedFile)
	if err != nil {
		c.Log.Warn("what containers had when their limits were lowered is not known any more", "error", err)
	}
	return &Auditor{
		config: c, log: c.Log, history: NewHistory(c.Grace), metrics: newMetrics(),
		allowed: allowed, told: map[key]time.Time{}, killed: map[orphans.Process]bool{}, damaged: map[string]bool{}, stamps: map[string]stamp{}, resized: map[string]int{},
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

// Resized tells of a container that has changed the size of its usage file, which was cut back since: a look that comes
// after that would not see it. It may be called at any time.
func (a *Auditor) Resized(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.resized[id] = confirming // so that it is a violation, however soon it was cut back
}

// cutBack are the containers of Resized that a look is to find.
func (a *Auditor) cutBack() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	cut := maps.Clone(a.resized)
	maps.DeleteFunc(a.resized, func(id string, left int) bool { a.resized[id] = left - 1; return left <= 1 })
	return cut
}

// Once is one look.
func (a *Auditor) Once(ctx context.Context, now time.Time) {
	began := time.Now()
	a.cut = a.cutBack()
	look, ok := a.take(ctx, a.look%thoroughly == 0)
	if !ok { // what was found before stays: nothing says that it is over
		for id := range a.cut {
			a.Resized(id)
		}
		return
	}
	a.look++
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
// found out. Whoever is on a GPU is asked for first: a claim that is made meanwhile is
// seen, and of one that is given back the processes are gone.
func (a *Auditor) take(ctx context.Context, thorough bool) (Look, bool) {
	devices, err := a.config.Devices(ctx)
	if ctx.Err() != nil {
		return Look{}, false
	}
	sayOnce(a.log, &a.saidDevices, "not every GPU is audited", err)
	if devices == nil {
		return Look{}, false
	}
	claims, ok := a.claims(ctx)
	if !ok {
		return Look{}, false
	}
	look := Look{Claims: claims}
	look.Processes, err = a.config.Inspector.Processes(claims, devices, thorough)
	err = errors.Join(err, a.config.Inspector.tampering(ctx, claims, a.config.Locks))
	at := containersOf(look.Processes)
	for id, c := range claims {
		if at[id] || a.damaged[id] || a.cut[id] > 0 || thorough && a.touched(c) {
			err = errors.Join(err, a.read(c))
			if c.Damage == "" && a.cut[id] > 0 {
				c.Damage = "a process of it has changed the size of its usage file (/.gpuslice/usage), which was cut back"
			}
			a.allow(c, look.Processes, devices)
		}
	}
	a.allowed.forget(at, devices, claims)
	sayOnce(a.log, &a.saidAllowed, "an agent that is started now judges by the limits alone", a.allowed.keep())
	sayOnce(a.log, &a.saidLook, "not all is audited", err)
	a.forget(claims)
	return look, true
}

// thoroughly is the part of the looks that look at all containers and all processes. The
// others look at those that are on a GPU, and at those that were found at fault: a node
// may have hundreds of containers that sleep.
const thoroughly = 6

func containersOf(processes []Process) map[string]bool {
	at := map[string]bool{}
	for i := range processes {
		if p := &processes[i]; p.Driver || len(p.Devices) > 0 || len(p.Open) > 0 { // not listed for its privileges only
			at[p.Container.ID] = true
		}
	}
	return at
}

// read finds out what a claim is worth now, and what has become of its usage file.
func (a *Auditor) read(c *Claim) error {
	if c.Unknown {
		return nil
	}
	devices, err := a.config.Granted(c)
	switch {
	case err == nil:
		c.Devices = devices
	case errors.Is(err, limiter.ErrLeased): // use the amounts that the ledger has reserved
		if c.Tampering.What == "" {
			c.Tampering.What = limiter.Lock{Lease: true}.String()
		}
	case errors.Is(err, fs.ErrNotExist): // the claim was removed
		c.Unknown = true
		return nil
	default:
		c.Unknown = true
		return fmt.Errorf("%s: %w", c.Container, err)
	}
	c.Damage = damage(c)
	delete(a.damaged, c.ID)
	if c.Damage != "" {
		a.damaged[c.ID] = true
	}
	return nil
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

// allow remembers what a container may have. Where it is not known what it has, that is
// what it was.
func (a *Auditor) allow(c *Claim, processes []Process, asked map[string][]nvidia.Process) {
	for i := range c.Devices {
		d := &c.Devices[i]
		last := a.allowed.bytes[c.ID][d.UUID]
		observed, known := observe(&Finding{}, c.ID, d.UUID, processes)
		if _, was := asked[d.UUID]; !was || !known {
			d.AllowedBytes = max(last, d.LimitBytes)
			continue
		}
		d.AllowedBytes = allow(last, d.LimitBytes, observed)
		a.allowed.set(c.ID, d.UUID, d.AllowedBytes)
	}
}

func (a *Auditor) forget(claims map[string]*Claim) {
	maps.DeleteFunc(a.stamps, func(id string, _ stamp) bool { return claims[id] == nil })
	maps.DeleteFunc(a.damaged, func(id string, _ bool) bool { return claims[id] == nil })
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
	// NVML and the ledger are asked again, after the decision.
	look, ok := a.take(ctx, false)
	if !ok {
		return
	}
	maps.DeleteFunc(a.killed, func(p orphans.Process, _ bool) bool { return !a.config.Inspector.lives(p) })
	for _, v := range confirm(due, Find(look)) {
		killed := 0
		var errs []error
		for _, o := range v.Offenders {
			if a.killed[o.Process] {
				continue // it takes its time to end
			}
			done, err := kill(o.Process, func() error { return a.config.Inspector.Still(v, o, look.Claims) })
			if done {
				killed++
				a.killed[o.Process] = true
			}
			if err != nil {
				errs = append(errs, err)
			}
		}
		a.ended(v, killed, errs)
	}
}

// confirm leaves of violations what a later look has found too: those processes of them that
// are still on the GPU, of a container that is still over its limit, and so on.
func confirm(due []Violation, found []Finding) []Violation {
	now := make(map[key]*Finding, len(found))
	for i := range found {
		now[found[i].key()] = &found[i]
	}
	var all []Violation
	for _, v := range due {
		f := now[v.key()]
		if f == nil {
			continue
		}
		v.Detail = f.Detail
		was := make(map[orphans.Process]bool, len(v.Offenders))
		for _, o := range v.Offenders {
			was[o.Process] = true
		}
		v.Offenders = slices.DeleteFunc(slices.Clone(f.Offenders), func(o Offender) bool { return o.Spared != "" || !was[o.Process] })
		if len(v.Offenders) > 0 {
			all = append(all, v)
		}
	}
	return all
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
