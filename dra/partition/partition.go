// Package partition makes MIG devices for ResourceClaims and destroys them when these end. It never changes the MIG mode of a GPU, and destroys
// no instance that it did not make: a journal has each step.
package partition

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

// Hardware calls NVML: nvidia.Cache.
type Hardware interface {
	Instances(ctx context.Context, gpu string) ([]hardware.GPUInstance, error)
	// CreateInstance returns made also with an error: the instance is made, and could not be read.
	CreateInstance(ctx context.Context, gpu string, profile, start, size int) (id int, made bool, err error)
	CreateCompute(ctx context.Context, gpu string, instance int) error
	DestroyCompute(ctx context.Context, gpu string, instance, compute int) error
	DestroyInstance(ctx context.Context, gpu string, instance int) error
}

// Config is the input of a Partitioner. All fields are required, except Changed.
type Config struct {
	// Dir is the journal's directory, for root only.
	Dir  string
	Boot string
	GPUs Hardware
	// Held returns whether a container or a prepared ResourceClaim has the MIG device.
	Held func(ctx context.Context, uuid string) (bool, error)
	// Changed is called after each change of a record.
	Changed func()
	Log     *slog.Logger
}

// Partitioner is safe for concurrent use.
type Partitioner struct {
	Config
	mu      sync.Mutex // held while instances change, also during calls of NVML
	records map[Place]Record
	// fresh has the places of records that this process wrote or used: Reconcile leaves them.
	fresh map[Place]bool
	// ended are the last records of places that were forgotten.
	ended map[Place]ended
	shown atomic.Pointer[shown]
}

type ended struct {
	Record
	when time.Time
}

type shown struct {
	records []Record
	ended   []ended
}

const suffix = ".json"

// Open reads the journal. A damaged record proves nothing and is removed.
func Open(c Config) (*Partitioner, error) {
	p := &Partitioner{Config: c, records: map[Place]Record{}, fresh: map[Place]bool{}, ended: map[Place]ended{}}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(c.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := atomicfile.RemoveUnfinished(c.Dir, func(file string) bool { return strings.HasSuffix(file, suffix) }); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(c.Dir, e.Name())
		data, err := os.ReadFile(path)
		if err != nil {
			c.Log.Error("a file of the journal of MIG devices can't be read; its MIG device stays", "file", path, "error", err)
			continue
		}
		var r Record
		if err := json.Unmarshal(data, &r); err != nil || filepath.Base(p.path(r.Place)) != e.Name() {
			c.Log.Error("a damaged record of a MIG device is removed; the device stays", "file", path, "error", err)
			if err := os.Remove(path); err != nil {
				return nil, err
			}
			continue
		}
		p.records[r.Place] = r
	}
	p.show()
	return p, nil
}

// Records are the journal's records now. It does not wait for NVML.
func (p *Partitioner) Records() []Record { return p.shown.Load().records }

// Since are the records now, and those that ended after a reading of the GPUs, which can still list their MIG devices.
func (p *Partitioner) Since(taken time.Time) []Record {
	now := p.shown.Load()
	all := slices.Clone(now.records)
	for _, e := range now.ended {
		if !e.when.Before(taken) {
			all = append(all, e.Record)
		}
	}
	return all
}

func (p *Partitioner) show() {
	all := make([]Record, 0, len(p.records))
	for _, r := range p.records {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Record) int { return strings.Compare(p.path(a.Place), p.path(b.Place)) })
	p.shown.Store(&shown{all, slices.Collect(maps.Values(p.ended))})
	if p.Changed != nil {
		p.Changed()
	}
}

func (p *Partitioner) path(place Place) string {
	return filepath.Join(p.Dir, fmt.Sprintf("%s.%d.%d%s", filepath.Base(place.GPU), place.Profile, place.At.Start, suffix))
}

func (p *Partitioner) put(r Record) error {
	data, err := json.Marshal(r)
	if err == nil {
		err = atomicfile.Write(p.path(r.Place), append(data, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("journal of MIG devices: %w", err)
	}
	p.records[r.Place] = r
	p.show()
	return nil
}

func (p *Partitioner) forget(place Place) error {
	if err := os.Remove(p.path(place)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("journal of MIG devices: %w", err)
	}
	if r, known := p.records[place]; known {
		r.Claim = ""
		p.ended[place] = ended{r, time.Now()}
	}
	delete(p.records, place)
	p.show()
	return nil
}

// Make returns the UUID of the MIG device at a place for a ResourceClaim. It makes the device unless it did before.
func (p *Partitioner) Make(ctx context.Context, claim string, place Place) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, err := p.GPUs.Instances(ctx, place.GPU)
	if err != nil {
		return "", err
	}
	for _, r := range p.Records() {
		if r.GPU != place.GPU || !r.At.Overlaps(place.At) {
			continue
		}
		if r.Place == place && r.Claim == claim && !r.Ending() && r.exists(p.Boot, now) {
			p.fresh[place] = true
			return r.UUID, nil
		}
		if r.Claim != claim && !r.Ending() && r.exists(p.Boot, now) {
			return "", fmt.Errorf("the place of the MIG device on GPU %s is another ResourceClaim's (%s)", place.GPU, r.Claim)
		}
		if err := p.release(ctx, r); err != nil {
			return "", fmt.Errorf("the place of the MIG device on GPU %s is not free yet: %w", place.GPU, err)
		}
	}
	if now, err = p.GPUs.Instances(ctx, place.GPU); err != nil {
		return "", err
	}
	if slices.ContainsFunc(now, func(g hardware.GPUInstance) bool { return g.Place.Overlaps(place.At) }) {
		return "", fmt.Errorf("GPU %s has a GPU instance at the place of the MIG device that this agent did not make: destroy it, or allocate the ResourceClaim again", place.GPU)
	}
	p.fresh[place] = true
	r := Record{Place: place, Claim: claim, Boot: p.Boot, State: Intended}
	if err := p.put(r); err != nil {
		return "", err
	}
	id, made, err := p.GPUs.CreateInstance(ctx, r.GPU, r.Profile, r.At.Start, r.At.Size)
	if err != nil && !made {
		return "", errors.Join(err, p.forget(place)) // what is at the place by now is another program's
	}
	if r.Instance = id; err == nil {
		r, err = p.make(ctx, r)
	}
	if err != nil {
		// Also if the caller no longer waits.
		return "", errors.Join(err, p.release(context.WithoutCancel(ctx), p.records[place]))
	}
	p.Log.Info("MIG device made", "gpu", r.GPU, "mig", r.UUID, "start", r.At.Start, "size", r.At.Size, "claim", claim)
	return r.UUID, nil
}

// make makes the MIG device of a GPU instance that was made.
func (p *Partitioner) make(ctx context.Context, r Record) (Record, error) {
	r.State = Instance
	if err := p.put(r); err != nil {
		return r, err
	}
	if err := p.GPUs.CreateCompute(ctx, r.GPU, r.Instance); err != nil {
		return r, err
	}
	now, err := p.GPUs.Instances(ctx, r.GPU)
	if err != nil {
		return r, err
	}
	found := r.at(now)
	if found == nil || len(found.Compute) != 1 || found.Compute[0].UUID == "" {
		return r, fmt.Errorf("GPU %s does not list the MIG device that was made", r.GPU)
	}
	r.State, r.Compute, r.UUID = Made, found.Compute[0].ID, found.Compute[0].UUID
	return r, p.put(r)
}

// Use records that a ResourceClaim is prepared.
func (p *Partitioner) Use(claim string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.Records() {
		if r.Claim == claim && r.State == Made {
			r.State = Used
			if err := p.put(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// errInUse: it is tried again.
var errInUse = errors.New("a container has the MIG device")

// Release destroys the MIG devices of a ResourceClaim. Those that can't be destroyed now, because they are in use or NVML fails, are destroyed
// later, by Run: only an error of the journal is one of Release.
func (p *Partitioner) Release(ctx context.Context, claim string) error {
	if !slices.ContainsFunc(p.Records(), func(r Record) bool { return r.Claim == claim }) {
		return nil // without waiting for NVML
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, r := range p.Records() {
		if r.Claim == claim {
			errs = append(errs, p.end(ctx, r))
		}
	}
	return errors.Join(errs...)
}

// end records that the ResourceClaim has ended, and undoes what can be undone now.
func (p *Partitioner) end(ctx context.Context, r Record) error {
	claim := r.Claim
	if r.Claim = ""; claim != "" {
		if err := p.put(r); err != nil {
			return err
		}
	}
	if err := p.release(ctx, r); err != nil {
		p.Log.Warn("a MIG device is destroyed later", "gpu", r.GPU, "mig", r.UUID, "claim", claim, "reason", err)
	}
	return nil
}

// release undoes a record; on an error it is continued later.
func (p *Partitioner) release(ctx context.Context, r Record) error {
	if r.Boot != p.Boot {
		return p.forget(r.Place)
	}
	for {
		now, err := p.GPUs.Instances(ctx, r.GPU)
		if err != nil {
			return err
		}
		if (r.State == Made || r.State == Used) && r.exists(p.Boot, now) {
			r.State = Destroying
			if err := p.put(r); err != nil {
				return err
			}
		}
		switch r.Undo(p.Boot, now) {
		case Forget:
			if len(r.UUID) > 0 && r.State != Emptied {
				p.Log.Warn("a MIG device is gone that this agent made; what is at its place stays", "gpu", r.GPU, "mig", r.UUID, "claim", r.Claim)
			}
			return p.forget(r.Place)
		case DestroyCompute:
			if err := p.free(ctx, r); err != nil {
				return err
			}
			if err := p.GPUs.DestroyCompute(ctx, r.GPU, r.Instance, r.at(now).Compute[0].ID); err != nil {
				return err
			}
		case DestroyInstance:
			if r.State != Emptied {
				r.Instance, r.State = r.at(now).ID, Emptied
				if err := p.put(r); err != nil {
					return err
				}
				continue // reads again: it is destroyed only while it has no compute instance
			}
			if err := p.GPUs.DestroyInstance(ctx, r.GPU, r.Instance); err != nil {
				return err
			}
		}
	}
}

func (p *Partitioner) free(ctx context.Context, r Record) error {
	if r.UUID == "" {
		return nil
	}
	held, err := p.Held(ctx, r.UUID)
	if err == nil && held {
		err = errInUse
	}
	return err
}

// Reconcile undoes what an earlier agent left: all that it did not finish, and what no prepared ResourceClaim has. An error is logged, and Run
// continues.
func (p *Partitioner) Reconcile(ctx context.Context, prepared func(claim string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.Records() {
		var err error
		switch {
		case p.fresh[r.Place]:
		case r.Ending() || !prepared(r.Claim):
			err = p.end(ctx, r)
		case r.State == Made:
			r.State = Used
			err = p.put(r)
		}
		if err != nil {
			p.Log.Error("the journal of MIG devices can't be written", "gpu", r.GPU, "mig", r.UUID, "error", err)
		}
	}
}

// Check continues what could not be undone, and forgets MIG devices that are gone.
func (p *Partitioner) Check(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.Records() {
		if !r.Ending() {
			now, err := p.GPUs.Instances(ctx, r.GPU)
			if err != nil || r.exists(p.Boot, now) {
				continue
			}
		}
		if err := p.release(ctx, r); err != nil {
			p.Log.Debug("a MIG device is destroyed later", "gpu", r.GPU, "mig", r.UUID, "claim", r.Claim, "reason", err)
		}
	}
}

// checkInterval is the time between two attempts to destroy an instance that is in use.
const checkInterval = 5 * time.Second

// Run reconciles once, and then checks until ctx ends.
func (p *Partitioner) Run(ctx context.Context, prepared func(claim string) bool) {
	p.Reconcile(ctx, prepared)
	periodic.Every(ctx, checkInterval, nil, func() { p.Check(ctx) })
}
