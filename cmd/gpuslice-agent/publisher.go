package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gpuslice/gpuslice/agent/nodeconfig"
	"github.com/gpuslice/gpuslice/agent/resized"
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/deviceplugin"
	"github.com/gpuslice/gpuslice/dra/partition"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/logonce"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/oci"
)

// publisher updates the node's offer and publishes it: node.json, the kubelet, subscribers.
type publisher struct {
	options   *options
	inventory *nvidia.Cache
	// settings returns the node configuration, or why there is none yet.
	settings   func() (nodeconfig.Settings, error)
	connection *deviceplugin.Connection
	// unplaced reads the ledger; nil: there is none.
	unplaced     func(context.Context) (map[string]ledger.Usage, error)
	reconfigured chan struct{}
	// offered receives each resource's GPUs; nil: no kubelet.
	offered func(map[deviceplugin.Resource][]deviceplugin.GPU)
	// devices receives each offer, for the DRA driver; nil: there is none.
	devices func(*offer)
	// mig makes MIG devices on request; nil: none.
	mig *partition.Partitioner
	// ready are additional conditions of /readyz.
	ready []condition
	// keeper has the newest grants of resized pods; set by nriPlugin.
	keeper *resized.Keeper
	// native are the driver's memory limits; nil: --memory-enforcement=limiter.
	native *nativeLimits
	// refused are the pods with grants that this node can't serve; set by nriPlugin.
	refused  func() []api.RefusedPod
	progress *progress
	changed  chan struct{}
	log      *slog.Logger

	current atomic.Pointer[offer]

	// Used by run's goroutine only.
	written  time.Time
	sources  map[string]nvidia.TimeSource
	problems struct{ offer, stale, write logonce.Problem }
}

func newPublisher(o *options, inventory *nvidia.Cache, log *slog.Logger) *publisher {
	p := &publisher{
		options: o, inventory: inventory, log: log,
		settings:     func() (nodeconfig.Settings, error) { return nodeconfig.Settings{}, nil },
		refused:      func() []api.RefusedPod { return nil },
		reconfigured: make(chan struct{}, 1), changed: make(chan struct{}, 1),
	}
	p.current.Store(&offer{})
	p.native = o.nativeLimits(inventory, log)
	return p
}

// notify makes the subscribers read the node's state.
func (p *publisher) notify() { periodic.Wake(p.changed) }

func (p *publisher) now() *offer { return p.current.Load() }

func (p *publisher) capacities() map[string]grant.GPU { return p.now().capacities }

// ociSettings adds the settings that depend on the offer.
func (p *publisher) ociSettings(base oci.Settings) oci.Settings {
	now := p.now()
	base.Oversubscription = now.beyond
	base.ContextMiB = now.contextMiB
	base.NoNative = p.native.reason()
	return base
}

// offerInterval is the polling interval for changes without a notification.
const offerInterval = time.Second

func (p *publisher) run(ctx context.Context) {
	tick := time.NewTicker(offerInterval)
	defer tick.Stop()
	for {
		p.progress.tick()
		connected, connectionChanged := p.connection.Connected()
		if connected != p.now().Connected {
			p.update()
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-connectionChanged:
		case <-tick.C:
			if !p.due() {
				continue
			}
		case <-p.inventory.Changed():
		case <-p.reconfigured:
		}
		p.update()
	}
}

// due checks changes without a notification: readings of the GPUs, cordons, and containers that no scheduler placed.
func (p *publisher) due() bool {
	gpus, now := p.inventory.Snapshot(), p.now()
	stale := p.options.stale(gpus, time.Now()) != nil
	return !gpus.Taken.Equal(p.written) || !maps.Equal(p.sources, p.inventory.TimeSources()) || stale != (now.Stale != nil) || !slices.Equal(p.cordons(), now.Cordoned) ||
		!maps.Equal(p.others(), now.Others)
}

// unplacedWait is short: a container that is created has the ledger's lock.
const unplacedWait = 200 * time.Millisecond

// others returns the previous sums if the ledger can't be read.
func (p *publisher) others() map[string]ledger.Usage {
	if p.unplaced == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), unplacedWait)
	defer cancel()
	others, err := p.unplaced(ctx)
	if err != nil {
		return p.now().Others
	}
	return others
}

// cordons returns the previous list if the file can't be read: the ledger then refuses, and the
// view has the error.
func (p *publisher) cordons() []string {
	cordoned, err := ledger.Cordoned(p.options.StateDir)
	if err != nil {
		return p.now().Cordoned
	}
	return cordoned
}

func (p *publisher) update() {
	last := p.now()
	connected, _ := p.connection.Connected()
	settings, unsettled := p.settings()
	gpus := p.inventory.Snapshot()
	next := p.options.offerOf(gpus, settings, unsettled, last)
	next.Cordoned, next.Others = p.cordons(), p.others()
	next.Connected, next.Stale = connected, p.options.stale(gpus, time.Now())
	p.current.Store(next)
	p.problems.offer.Report(p.log, "no GPUs are offered", "GPUs are offered again", next.Problem)
	p.problems.stale.Report(p.log, "the GPUs are unhealthy", "the GPUs are read again", next.Stale)
	if p.offered != nil {
		p.offered(p.options.forKubelet(next))
	}
	if p.devices != nil {
		p.devices(next)
	}
	periodic.Wake(p.changed)
	p.writeNode(last, next)
}

// writeNode writes node.json after a new reading or another change.
func (p *publisher) writeNode(last, next *offer) {
	file := p.fileOf(next)
	if !next.GPUs.Taken.After(p.written) && slices.Equal(last.Devices, next.Devices) && maps.Equal(last.health(), next.health()) && maps.Equal(p.sources, file.ComputeSource) {
		return
	}
	err := node.Write(p.options.StateDir, file)
	p.problems.write.Report(p.log, "node not published", "node published again", err)
	if err != nil {
		return
	}
	p.written, p.sources = next.GPUs.Taken, file.ComputeSource
}

func (p *publisher) file() node.File { return p.fileOf(p.now()) }

func (p *publisher) fileOf(o *offer) node.File {
	return node.File{
		Name: p.options.NodeName, AgentVersion: version.String(), WrittenAt: o.GPUs.Taken, Devices: o.Devices,
		Node: o.GPUs.Node, Health: o.health(), Topology: o.GPUs.Topology,
		ComputeSource: p.inventory.TimeSources(),
	}
}

// stale returns an error if NVML hangs, which reports nothing itself.
func (o *options) stale(gpus nvidia.Snapshot, now time.Time) error {
	age := now.Sub(gpus.Taken)
	if gpus.Taken.IsZero() || gpus.Err != nil || age <= 2*o.InventoryInterval+staleAfter {
		return nil
	}
	return fmt.Errorf("NVML has not responded since %s: check dmesg for XIDs of a GPU that hangs", gpus.Taken.Format(time.RFC3339))
}

// staleAfter allows for a slow start of the driver without a persistence daemon.
const staleAfter = 30 * time.Second
