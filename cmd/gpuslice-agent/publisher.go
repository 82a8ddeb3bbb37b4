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
	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/deviceplugin"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/oci"
)

// publisher keeps the node's offer current, and tells of it: node.json, the kubelet,
// and whoever waits for changes.
type publisher struct {
	options   *options
	inventory *nvidia.Cache
	// settings are the node's configuration; an error says why there is none yet.
	settings func() (nodeconfig.Settings, error)
	// guard says whether the node is guarded.
	guard deviceplugin.Condition
	// reconfigured gets a value when they change.
	reconfigured chan struct{}
	// offered is told of each resource's GPUs; nil: no kubelet.
	offered func(map[deviceplugin.Resource][]deviceplugin.GPU)
	// ready are what the agent's being ready needs besides, by who follows a file.
	ready []condition
	// keeper has the newest grants of pods that were resized; guardian makes it.
	keeper *resized.Keeper
	// progress is for the watchdog; nil: no watchdog.
	progress *progress
	// changed gets a value when there is another offer, one for several.
	changed chan struct{}
	log     *slog.Logger

	current atomic.Pointer[offer]

	// Of run's goroutine.
	written time.Time // when the GPUs that node.json has were read
	// The problems that were logged last.
	saidProblem, saidStale, saidWrite string
}

func newPublisher(o *options, inventory *nvidia.Cache, log *slog.Logger) *publisher {
	p := &publisher{
		options: o, inventory: inventory, log: log,
		settings:     func() (nodeconfig.Settings, error) { return nodeconfig.Settings{}, nil },
		reconfigured: make(chan struct{}, 1), changed: make(chan struct{}, 1),
	}
	p.current.Store(&offer{})
	return p
}

// now is the offer. It never blocks.
func (p *publisher) now() *offer { return p.current.Load() }

// capacities are what may be booked, by UUID.
func (p *publisher) capacities() map[string]grant.GPU { return p.now().capacities }

// ociSettings are the node's settings with what follows from the offer.
func (p *publisher) ociSettings(base oci.Settings) oci.Settings {
	now := p.now()
	base.Oversubscription = now.beyond
	base.ContextMiB = now.contextMiB
	return base
}

// reconfigure has the offer made again.
func (p *publisher) reconfigure() { poke(p.reconfigured) }

// poke wakes who waits, if he isn't woken already.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// offerInterval is the polling interval for changes without a notification.
const offerInterval = time.Second

// run looks every second whether the GPUs were read again, and at once when something
// has changed, until ctx ends.
func (p *publisher) run(ctx context.Context) {
	gpus, cancel := p.inventory.Subscribe()
	defer cancel()
	tick := time.NewTicker(offerInterval)
	defer tick.Stop()
	for {
		p.progress.tick()
		guarded, guardChanged := p.guard.Guarded()
		if guarded != p.now().Guarded { // since the update
			p.update()
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-guardChanged:
		case <-tick.C:
			if !p.due() {
				continue
			}
		case <-gpus:
		case <-p.reconfigured:
		}
		p.update()
	}
}

// due says whether something that nobody tells of has changed: the GPUs' being looked at,
// and their cordons.
func (p *publisher) due() bool {
	gpus, now := p.inventory.Snapshot(), p.now()
	stale := p.options.stale(gpus, time.Now()) != nil
	return !gpus.Taken.Equal(p.written) || stale != (now.Stale != nil) || !slices.Equal(p.cordons(), now.Cordoned)
}

// cordons are the GPUs that get no new container; those of before while the list can't be
// read, which the view tells of, and the ledger refuses by.
func (p *publisher) cordons() []string {
	cordoned, err := ledger.Cordoned(p.options.StateDir)
	if err != nil {
		return p.now().Cordoned
	}
	return cordoned
}

// update makes the offer again and tells of it.
func (p *publisher) update() {
	last := p.now()
	guarded, _ := p.guard.Guarded()
	settings, unsettled := p.settings()
	gpus := p.inventory.Snapshot()
	next := p.options.offerOf(gpus, settings, unsettled, last)
	next.Cordoned = p.cordons()
	next.Guarded, next.Stale = guarded, p.options.stale(gpus, time.Now())
	p.current.Store(next)
	p.sayOnce("no GPUs are offered", "GPUs are offered again", &p.saidProblem, next.Problem)
	p.sayOnce("the GPUs are unhealthy", "the GPUs are looked at again", &p.saidStale, next.Stale)
	if p.offered != nil {
		p.offered(p.options.forKubelet(next))
	}
	poke(p.changed)
	p.writeNode(last, next)
}

// writeNode writes node.json if the GPUs were read since it was written, or are
// shared otherwise.
func (p *publisher) writeNode(last, next *offer) {
	if !next.GPUs.Taken.After(p.written) && slices.Equal(last.Devices, next.Devices) && maps.Equal(last.health(), next.health()) {
		return
	}
	err := node.Write(p.options.StateDir, p.fileOf(next))
	p.sayOnce("node not published", "node published again", &p.saidWrite, err)
	if err != nil {
		return
	}
	p.written = next.GPUs.Taken
}

// file is what is told of the node at the moment.
func (p *publisher) file() node.File { return p.fileOf(p.now()) }

func (p *publisher) fileOf(o *offer) node.File {
	return node.File{
		Name: p.options.NodeName, AgentVersion: version.String(), WrittenAt: o.GPUs.Taken, Devices: o.Devices,
		Node: o.GPUs.Node, Health: o.health(), Topology: o.GPUs.Topology,
	}
}

// sayOnce logs a problem when it comes, or becomes another, and when it is gone.
func (p *publisher) sayOnce(bad, good string, said *string, problem error) {
	text := ""
	if problem != nil {
		text = problem.Error()
	}
	if text == *said {
		return
	}
	*said = text
	if problem != nil {
		p.log.Error(bad, "error", problem)
	} else {
		p.log.Info(good)
	}
}

// stale says that the GPUs were not looked at for so long that the driver must hang:
// NVML may, with a GPU that hangs, and then reports nothing.
func (o *options) stale(gpus nvidia.Snapshot, now time.Time) error {
	age := now.Sub(gpus.Taken)
	if gpus.Taken.IsZero() || gpus.Err != nil || age <= 2*o.InventoryInterval+staleAfter {
		return nil
	}
	return fmt.Errorf("NVML has not answered since %s: it hangs, maybe with a GPU: look into dmesg for XIDs", gpus.Taken.Format(time.RFC3339))
}

// staleAfter is how long a look at the GPUs may take: seconds where no persistence
// daemon runs.
const staleAfter = 30 * time.Second
