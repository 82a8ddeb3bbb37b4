// Package audit compares the processes on a node's GPUs with the grants: tenants can disable the limiter, but
// not change NVML and /proc. The agent runs an Auditor. docs/AUDIT.md is the manual.
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

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/logonce"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/limiter/feedback"
	"github.com/gpuslice/gpuslice/nvidia"
)

type Config struct {
	// Interval is the time between passes, and Grace how long a violation lasts before Kill.
	Interval, Grace time.Duration
	Kill            bool
	// Devices returns the processes by GPU and MIG device.
	Devices func(context.Context) (map[string][]nvidia.Process, error)
	Claims  func(context.Context) ([]Claim, error)
	Granted func(*Claim) ([]Device, error)
	// Locks finds locks and leases on a claim's files.
	Locks func(*Claim) ([]limiter.Lock, error)
	// Excesses returns the containers with more compute time than they are due; optional.
	Excesses  func() []feedback.Excess
	Inspector *Inspector
	// Ready returns why the containers are not known now. Then nothing is killed.
	Ready func() error
	// AllowedFile saves Device.AllowedBytes across restarts; empty: not saved.
	AllowedFile string
	// Events notifies pods; optional.
	Events Events
	Log    *slog.Logger
}

// Auditor compares the processes on the GPUs with the grants.
type Auditor struct {
	prometheus.Collector // its metrics

	config   Config
	log      *slog.Logger
	history  *History
	metrics  metrics
	allowed  *allowed
	passes   int
	damaged  map[string]bool // usage files that were damaged in the last pass
	stamps   map[string]stamp
	notified map[key]time.Time
	killed   map[orphans.Process]bool // perhaps not gone yet
	problems struct{ Devices, Claims, Processes, Ready, Allowed logonce.Problem }

	mu  sync.Mutex
	now []Violation
	// resized are containers of Resized, with the number of passes that report them.
	resized map[string]int
	cut     map[string]int // those for the present pass
}

func New(c Config) *Auditor {
	allowed, err := openAllowed(c.AllowedFile)
	if err != nil {
		c.Log.Warn("can't read the memory that containers may keep after a lowered limit", "error", err)
	}
	registry := prometheus.NewRegistry()
	return &Auditor{
		Collector: registry, config: c, log: c.Log, history: NewHistory(c.Grace), metrics: newMetrics(registry),
		allowed: allowed, notified: map[key]time.Time{}, killed: map[orphans.Process]bool{}, damaged: map[string]bool{}, stamps: map[string]stamp{}, resized: map[string]int{},
	}
}

func (a *Auditor) Run(ctx context.Context) {
	periodic.Every(ctx, a.config.Interval, nil, func() { a.Once(ctx, time.Now()) })
}

func (a *Auditor) Violations() []Violation {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.now)
}

// Resized reports a container with a usage file or a turn file that was cut back to its size.
func (a *Auditor) Resized(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.resized[id] = confirming // so that it is confirmed
}

func (a *Auditor) cutBack() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	cut := maps.Clone(a.resized)
	maps.DeleteFunc(a.resized, func(id string, left int) bool { a.resized[id] = left - 1; return left <= 1 })
	return cut
}

func (a *Auditor) Once(ctx context.Context, now time.Time) {
	began := time.Now()
	a.cut = a.cutBack()
	snapshot, ok := a.take(ctx, a.passes%fullPass == 0)
	if !ok { // keep earlier violations: nothing shows that they ended
		for id := range a.cut {
			a.Resized(id)
		}
		return
	}
	a.passes++
	step := a.history.Step(now, Find(snapshot))
	for _, v := range step.Began {
		a.begin(v, now)
	}
	for _, v := range step.Over {
		delete(a.notified, v.key())
		a.log.Info("violation ended", v.attributes()...)
	}
	lasting := a.history.Now()
	for _, v := range lasting {
		if now.Sub(a.notified[v.key()]) >= repeatEvent {
			a.notify(v, now)
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

// take reads processes and grants; false: nothing could be read. Processes first: then a new process has its claim, and
// the processes of a released claim are gone.
func (a *Auditor) take(ctx context.Context, thorough bool) (Snapshot, bool) {
	devices, err := a.config.Devices(ctx)
	if ctx.Err() != nil {
		return Snapshot{}, false
	}
	a.problems.Devices.Warn(a.log, "some GPUs are not audited", err)
	if devices == nil {
		return Snapshot{}, false
	}
	claims, ok := a.claims(ctx)
	if !ok {
		return Snapshot{}, false
	}
	snapshot := Snapshot{Claims: claims}
	if a.config.Excesses != nil {
		snapshot.Excesses = a.config.Excesses()
	}
	snapshot.Processes, err = a.config.Inspector.Processes(claims, devices, thorough)
	err = errors.Join(err, a.config.Inspector.tampering(ctx, claims, a.config.Locks))
	at := containersOf(snapshot.Processes)
	for id, c := range claims {
		if at[id] || a.damaged[id] || a.cut[id] > 0 || thorough && a.touched(c) {
			err = errors.Join(err, a.read(c))
			if c.Damage == "" && a.cut[id] > 0 {
				c.Damage = "a process of the container changed the size of its usage file (/.gpuslice/usage) or of a turn file (/.gpuslice/turns)"
			}
			a.allow(c, snapshot.Processes, devices)
		}
	}
	a.allowed.forget(at, devices, claims)
	a.problems.Allowed.Warn(a.log, "can't save the memory that containers may keep after a lowered limit", a.allowed.keep())
	a.problems.Processes.Warn(a.log, "some processes are not audited", err)
	a.forget(claims)
	return snapshot, true
}

// fullPass: one pass of so many inspects everything. The others inspect suspects and what is on a GPU: a node can have
// hundreds of idle containers.
const fullPass = 6

func containersOf(processes []Process) map[string]bool {
	at := map[string]bool{}
	for i := range processes {
		if p := &processes[i]; p.Driver || len(p.Devices) > 0 || len(p.Open) > 0 { // not only listed for its capabilities
			at[p.Container.ID] = true
		}
	}
	return at
}

func (a *Auditor) read(c *Claim) error {
	if c.Unknown {
		return nil
	}
	devices, err := a.config.Granted(c)
	switch {
	case err == nil:
		c.Devices = devices
	case errors.Is(err, limiter.ErrLeased): // use the amounts of the ledger
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
	a.problems.Claims.Warn(a.log, "nothing is audited", err)
	if err != nil {
		return nil, false
	}
	claims := make(map[string]*Claim, len(list))
	for i := range list {
		claims[list[i].ID] = &list[i]
	}
	return claims, true
}

// allow updates AllowedBytes. With unknown use they stay.
func (a *Auditor) allow(c *Claim, processes []Process, asked map[string][]nvidia.Process) {
	for i := range c.Devices {
		d := &c.Devices[i]
		last := a.allowed.bytes[c.ID][d.UUID]
		observed, known := observe(&Finding{}, c, d.UUID, processes)
		_, was := asked[d.UUID]
		if _, counted := c.Counted[d.UUID]; !was && !counted || !known {
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

// end kills the processes that are due, after another pass.
func (a *Auditor) end(ctx context.Context, due []Violation) {
	if !a.config.Kill || len(due) == 0 {
		return
	}
	if a.config.Ready != nil {
		err := a.config.Ready()
		a.problems.Ready.Warn(a.log, "not killing processes: the list of containers is not known", err)
		if err != nil {
			return
		}
	}
	snapshot, ok := a.take(ctx, false)
	if !ok {
		return
	}
	maps.DeleteFunc(a.killed, func(p orphans.Process, _ bool) bool { return !a.config.Inspector.lives(p) })
	for _, v := range confirm(due, Find(snapshot)) {
		killed := 0
		var errs []error
		for _, o := range v.Offenders {
			if a.killed[o.Process] {
				continue // it is still ending
			}
			done, err := kill(o.Process, func() error { return a.config.Inspector.Still(v, o, snapshot.Claims) })
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

var errProcessChanged = errors.New("process changed since it was inspected")

// kill uses a pidfd, which stays with the process; still checks it after the pidfd is open. An ended process is no error.
func kill(p orphans.Process, still func() error) (killed bool, err error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if err := still(); err != nil {
		if gone(err) {
			return false, nil
		}
		return false, fmt.Errorf("process %d not killed: %w", p.PID, err)
	}
	err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	return err == nil, nil
}

func (i *Inspector) lives(p orphans.Process) bool {
	s, _, err := i.proc.Process(p.PID)
	return err == nil && s.Start == p.Start
}

// Still reads everything again, and returns nil if the process is still the one of the violation.
func (i *Inspector) Still(v Violation, o Offender, claims map[string]*Claim) error {
	files := usageFiles(claims)
	owner := files.ID(feedback.NewOwners(string(i.proc.FS)).Find([]int{o.PID}, files.UsageFiles)[o.PID])
	delete(i.mapped, o.Process)
	now, err := i.process(o.PID, owner, claims, nil)
	if v.Kind == ForeignDescriptor {
		now.Open = nodesOf(i.descriptors.of(o.PID), i.nodes())
	}
	claim := claims[now.Container.ID]
	changed := func(why string) error { return fmt.Errorf("%w: %s", errProcessChanged, why) }
	switch {
	case now.PID == 0:
		return err
	case now.Process != o.Process || now.Container.ID == "" || now.Container.ID != v.Container.ID || now.Exempt || now.Spared != "":
		return errProcessChanged
	case (v.Kind == NoLimiter || v.Kind == ForeignFiles) && err != nil:
		return err
	case v.Kind == NoLimiter && now.Limiter != LimiterAbsent && now.Limiter != LimiterForged:
		return changed("it has the limiter")
	case v.Kind == ForeignFiles && (now.Files == FilesOwn || now.Files == FilesUnknown):
		return changed("it has its container's limits and usage files")
	case v.Kind == TamperedFiles && !i.holds(o.PID, claim):
		return changed("it holds no lock or lease on its container's files")
	case v.Kind == ForeignDescriptor && (claim != nil && claim.Unknown || len(now.ungrantedOpen(claim)) == 0):
		return changed("it has no GPU open without a grant")
	case v.Kind == UngrantedProcess && claim != nil && (claim.Unknown || !slices.ContainsFunc(o.Devices, func(uuid string) bool { return !claim.granted(uuid) })):
		return changed("it has a grant")
	}
	return nil
}

func usageFiles(claims map[string]*Claim) *feedback.Claims {
	files := feedback.NewClaims(len(claims))
	for id, c := range claims {
		members := make([]string, 0, len(c.Members))
		for _, m := range c.Members {
			members = append(members, m.ID)
		}
		files.Add(id, c.usageFile(), members)
	}
	return files
}
