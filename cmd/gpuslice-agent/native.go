package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/agent/noderegister"
	"github.com/gpuslice/gpuslice/internal/logonce"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/native"
)

// nativeInterval is the time between two comparisons of the driver's limits with the ledger.
const nativeInterval = 5 * time.Second

// limitedByDriver is the type of the node's condition.
const limitedByDriver = "GPUMemoryLimitedByDriver"

// nativeLimits are the driver's memory limits of this node's containers. A nil pointer is a node without.
type nativeLimits struct {
	mode   oci.MemoryEnforcement
	driver native.Driver
	// of identifies the driver and the GPUs that a probe is valid for; "": not known yet.
	of    func() (of string, gpus []string)
	root  func() (string, error)
	retry time.Duration
	now   func() time.Time
	log   *slog.Logger
	// changed is called after the enforcement of new containers has changed; may be nil.
	changed func()

	mu     sync.Mutex
	probed string
	at     time.Time
	since  time.Time // the last probe with another result
	err    error
	failed logonce.Problem
	set    logonce.Problem
}

func (o *options) nativeLimits(inventory *nvidia.Cache, log *slog.Logger) *nativeLimits {
	if o.Memory == string(oci.MemoryLimiter) || !o.withNRI() {
		return nil
	}
	return &nativeLimits{
		mode: oci.MemoryEnforcement(o.Memory), driver: inventory, root: native.Root, retry: o.InventoryInterval, now: time.Now, log: log, err: native.ErrNotProbed,
		of: func() (string, []string) {
			s := inventory.Snapshot()
			gpus := s.Node.WithoutMIG()
			if s.Taken.IsZero() || s.Err != nil {
				return "", nil
			}
			return s.Node.DriverVersion + " " + strings.Join(gpus, " "), gpus
		},
	}
}

// reason is why the driver can't limit containers; nil: it can.
func (n *nativeLimits) reason() error {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// enforcement is what limits the memory of new containers, for the node's label; "" without the option.
func (n *nativeLimits) enforcement() string {
	if n == nil {
		return ""
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.enforcementNow()
}

// ofResourceClaims is enforcement for containers with a ResourceClaim, which auto gives to the limiter.
func (n *nativeLimits) ofResourceClaims() string {
	if n != nil && n.mode == oci.MemoryAuto {
		return string(oci.MemoryLimiter)
	}
	return n.enforcement()
}

// condition is the node's: True if the driver limits the memory of new containers, False if it does not. claims: they have
// ResourceClaims.
func (n *nativeLimits) condition(claims bool) noderegister.Condition {
	c := noderegister.Condition{Type: limitedByDriver}
	if n == nil {
		return c
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	c.At = n.since
	switch {
	case errors.Is(n.err, native.ErrNotProbed):
		c.Status, c.Reason, c.Message = "Unknown", "NotProbed", n.err.Error()
	case n.err != nil:
		c.Status, c.Reason, c.Message = "False", "ProbeFailed", n.err.Error()
	case claims && n.mode == oci.MemoryAuto:
		c.Status, c.Reason, c.Message = "False", "ResourceClaims", "with --memory-enforcement=auto the limiter limits containers with a ResourceClaim"
	default:
		c.Status, c.Reason, c.Message = "True", "Probed", "the driver keeps a limit of a control group on each GPU; new containers have "+n.enforcementNow()
	}
	return c
}

// enforcementNow: the mutex is held.
func (n *nativeLimits) enforcementNow() string {
	switch {
	case n.mode != oci.MemoryAuto:
		return string(n.mode)
	case n.err == nil:
		return string(oci.MemoryBoth)
	}
	return string(oci.MemoryLimiter)
}

// look probes the driver once for each driver and list of GPUs, and again after a failure.
func (n *nativeLimits) look(ctx context.Context) {
	if n == nil {
		return
	}
	of, gpus := n.of()
	n.mu.Lock()
	known := of == "" || of == n.probed && (n.err == nil || n.now().Before(n.at.Add(n.retry)))
	if !known && of != n.probed {
		n.err = native.ErrNotProbed // another driver can differ
	}
	n.mu.Unlock()
	if known {
		return
	}
	root, err := n.root()
	if err == nil {
		err = native.Probe(ctx, n.driver, root, gpus)
	}
	if ctx.Err() != nil {
		return
	}
	n.failed.Warn(n.log, "the driver does not limit the memory of control groups", err)
	n.mu.Lock()
	before := n.enforcementNow()
	if err == nil && n.err != nil || err != nil && (n.err == nil || n.err.Error() != err.Error()) {
		n.since = n.now()
	}
	n.probed, n.at, n.err = of, n.now(), err
	changed := n.enforcementNow() != before
	n.mu.Unlock()
	if changed && n.changed != nil {
		n.changed()
	}
}

// resize sets the limits of a container that runs. The hook sets those of one that is being created.
func (n *nativeLimits) resize(dir string, claim ledger.Claim) error {
	if !oci.Enforcement(claim.Mode).Native() {
		return nil
	}
	if n == nil {
		return errors.New("the driver limits the container's memory, and --memory-enforcement is limiter now: restart the container")
	}
	record, err := native.ReadRecord(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := oci.LibrariesOf(dir); errors.Is(err, oci.ErrUnknownLibraries) {
			return fmt.Errorf("the control group with the driver's memory limit is not known: %w: restart the container", err)
		}
		return nil
	}
	limits, limitsErr := native.Limits(claim.Shares)
	if err := errors.Join(err, limitsErr); err != nil {
		return err
	}
	ctx := context.Background()
	states, err := native.Read(ctx, n.driver, record.Cgroup, limits)
	if err != nil {
		return err
	}
	for i, s := range states {
		if s.Used > limits[i].Bytes { // what a driver does then is not known
			return fmt.Errorf("it uses %d MiB of GPU %s, more than its new limit: free memory first", s.Used>>20, s.UUID)
		}
	}
	_, err = native.Change(ctx, n.driver, record.Cgroup, limits)
	return err
}

// counted is the driver's count of what a container's control group has of these GPUs; nil: no group is known.
func (n *nativeLimits) counted(ctx context.Context, dir string, uuids []string) (map[string]uint64, error) {
	if n == nil || len(uuids) == 0 {
		return nil, nil
	}
	group, err := groupOf(dir)
	if group == "" || err != nil {
		return nil, err
	}
	var of []native.Limit
	for _, uuid := range uuids {
		of = append(of, native.Limit{UUID: uuid})
	}
	states, err := native.Read(ctx, n.driver, group, of)
	if err != nil {
		return nil, err
	}
	bytes := map[string]uint64{}
	for _, s := range states {
		bytes[s.UUID] = s.Used
	}
	return bytes, nil
}

// groupOf returns the control group of a claim's container; "": it has none, and so no processes, or the hook has not run, or the
// claim was restored.
func groupOf(dir string) (string, error) {
	record, err := native.ReadRecord(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if _, gone := os.Lstat(record.Cgroup); errors.Is(gone, fs.ErrNotExist) {
		return "", nil
	}
	return record.Cgroup, nil
}

// limited are the GPUs of which the driver limits the memory of a claim's control group.
func limited(claim ledger.Claim) (uuids []string) {
	if oci.Enforcement(claim.Mode).Native() {
		for _, s := range claim.Shares {
			uuids = append(uuids, s.UUID)
		}
	}
	return uuids
}

// compare sets limits again that differ from the ledger: root in a container may be able to change its own.
func (n *nativeLimits) compare(ctx context.Context, store *ledger.Ledger) error {
	snapshot, err := store.Snapshot(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range snapshot.Entries {
		if e.State != ledger.StateActive || !oci.Enforcement(e.Mode).Native() {
			continue
		}
		err := n.differs(ctx, store.Dir(e.ContainerID), e.Claim)
		if err != nil {
			n.log.Warn("a container's memory limit in the driver is not the ledger's: setting it again", "id", e.ContainerID, "reason", err)
			err = store.Reapply(ctx, e.ContainerID, func(dir string, claim ledger.Claim) error { return n.restore(ctx, dir, claim) }) // not during a resize
		}
		if err != nil && !errors.Is(err, ledger.ErrNoClaim) {
			errs = append(errs, fmt.Errorf("container %s: %w", oci.ShortID(e.ContainerID), err))
		}
	}
	return errors.Join(errs...)
}

// differs returns how a container's limits differ from its claim.
func (n *nativeLimits) differs(ctx context.Context, dir string, claim ledger.Claim) error {
	group, err := groupOf(dir)
	if group == "" || err != nil {
		return err
	}
	limits, err := native.Limits(claim.Shares)
	if err != nil {
		return err
	}
	states, err := native.Read(ctx, n.driver, group, limits)
	if err != nil {
		return err
	}
	return native.Check(limits, states)
}

func (n *nativeLimits) restore(ctx context.Context, dir string, claim ledger.Claim) error {
	if n.differs(ctx, dir, claim) == nil {
		return nil
	}
	record, err := native.ReadRecord(dir)
	if err != nil {
		return err
	}
	limits, err := native.Limits(claim.Shares)
	if err != nil {
		return err
	}
	_, err = native.Change(ctx, n.driver, record.Cgroup, limits)
	return err
}

// limitNatively serves the hooks of containers, and keeps the limits.
func (o *options) limitNatively(store *ledger.Ledger, p *publisher, then *background, log *slog.Logger) error {
	n := p.native
	if n == nil {
		return nil
	}
	n.changed = p.notify
	l, err := listenForHooks(o.StateDir)
	if err != nil {
		return err
	}
	*then = slices.Concat(*then, background{
		func(ctx context.Context) { serveHooks(ctx, l, n.driver, log) },
		func(ctx context.Context) {
			periodic.Every(ctx, nativeInterval, nil, func() {
				n.look(ctx)
				if err := n.compare(ctx, store); ctx.Err() == nil {
					n.set.Warn(log, "failed to compare the driver's memory limits with the ledger", err)
				}
			})
		},
	})
	return nil
}
