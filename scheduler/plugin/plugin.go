package plugin

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/metrics"
	"github.com/gpuslice/gpuslice/scheduler/quota"
)

// Name is the plugin's, in profiles.
const Name = "GPUSlice"

// reservationTTL is what a reservation lasts that nobody gives back. This door always does
// (Unreserve), however long a bind or a group takes: it is for what was forgotten.
const reservationTTL = 30 * time.Minute

// component is the label in metrics.
const component = "plugin"

// Factory makes the plugin for each profile of a process. All of them have one engine:
// two would give the same GPUs twice.
type Factory struct {
	// Metrics may be nil.
	Metrics *metrics.Metrics
	// Log is slog.Default where it is nil.
	Log *slog.Logger
	// Started is called once with the engine, before it knows anything, and the settings; it may be nil.
	Started func(*engine.Engine, *Args)
	// Beside runs beside the plugin until its context ends, to show the engine and what it is
	// told of to people; it may be nil.
	Beside func(context.Context, *engine.Engine, *kube.Feeding)
	// Leads is nil while this replica places pods: what is asked of running ones (a resize) it answers
	// only then. Nil: it always does.
	Leads func() error

	mu       sync.Mutex
	args     *Args
	shared   *shared
	profiles sync.Map // their names
	tasks    sync.WaitGroup
}

// shared is what the plugins of all profiles have in common.
type shared struct {
	args    *Args
	engine  *engine.Engine
	feeding *kube.Feeding
	behind  *behind
	groups  *groups
	refused *refused
	// offering is which nodes have GPUs.
	offering offering
	keys     *grant.SigningKeyFile // nil: grants are not signed
	metrics  *metrics.Metrics
	log      *slog.Logger
	// bypassed says that another plugin has bound a pod with GPUs.
	bypassed atomic.Bool
}

// Plugin is the plugin of one profile.
type Plugin struct {
	*shared
	handle fwk.Handle
}

var (
	_ fwk.PreFilterPlugin     = (*Plugin)(nil)
	_ fwk.PreFilterExtensions = (*Plugin)(nil)
	_ fwk.FilterPlugin        = (*Plugin)(nil)
	_ fwk.PostFilterPlugin    = (*Plugin)(nil)
	_ fwk.PreScorePlugin      = (*Plugin)(nil)
	_ fwk.ScorePlugin         = (*Plugin)(nil)
	_ fwk.ScoreExtensions     = (*Plugin)(nil)
	_ fwk.ReservePlugin       = (*Plugin)(nil)
	_ fwk.PermitPlugin        = (*Plugin)(nil)
	_ fwk.PreBindPlugin       = (*Plugin)(nil)
	_ fwk.BindPlugin          = (*Plugin)(nil)
	_ fwk.PostBindPlugin      = (*Plugin)(nil)
	_ fwk.EnqueueExtensions   = (*Plugin)(nil)
	_ fwk.SignPlugin          = (*Plugin)(nil)
)

// Name implements fwk.Plugin.
func (p *Plugin) Name() string { return Name }

// New is kube-scheduler's PluginFactory. What it starts ends with ctx: see Wait.
func (f *Factory) New(ctx context.Context, object runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, err := ParseArgs(object)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.shared == nil:
		if f.shared, err = f.start(ctx, args, handle); err != nil {
			return nil, fmt.Errorf("plugin %s: %w", Name, err)
		}
		f.args = args
	case !reflect.DeepEqual(f.args, args):
		return nil, fmt.Errorf("args of plugin %s: those of profile %q are not those of the profiles before it: all have one state of the GPUs, so give all the same", Name, handle.ProfileName())
	}
	p := &Plugin{f.shared, handle}
	f.profiles.Store(handle.ProfileName(), true)
	f.shared.groups.join(p)
	return p, nil
}

// Wait returns once what New has started has ended.
func (f *Factory) Wait() { f.tasks.Wait() }

func (f *Factory) start(ctx context.Context, args *Args, handle fwk.Handle) (*shared, error) {
	s := &shared{args: args, metrics: f.Metrics, log: f.Log, refused: newRefused()}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.metrics == nil {
		s.metrics = metrics.New()
	}
	options := args.Engine()
	options.ReservationTTL = reservationTTL
	if args.GrantPrivateKeyFile != "" {
		keys := grant.OpenSigningKeys(args.GrantPrivateKeyFile, s.log)
		if err := keys.Ready(); err != nil {
			return nil, fmt.Errorf("grants have to be signed: %w", err)
		}
		s.keys, options.Keys = keys, keys
	}
	var err error
	if s.engine, err = engine.New(options); err != nil {
		return nil, err
	}
	if f.Started != nil {
		f.Started(s.engine, args)
	}
	informers := handle.SharedInformerFactory()
	if s.feeding, err = kube.Feed(informers, resizeSink{s.engine, handle}); err != nil {
		return nil, err
	}
	s.behind = newBehind(s.feeding)
	if s.groups, err = newGroups(informers, args.GroupTimeout.Duration); err != nil {
		return nil, err
	}
	if _, err := informers.Core().V1().Pods().Informer().AddEventHandler(kube.Handler[*v1.Pod]{Gone: s.refused.forget}); err != nil {
		return nil, err
	}
	quotas := quotaSink{s.engine, s.refused}
	if err := s.feeding.Quotas(informers, quotas, options.Request, s.log); err != nil {
		return nil, err
	}
	if namespace, name := args.GPUQuotaName(); name != "" {
		gpus, err := s.feeding.GPUQuota(handle.ClientSet(), namespace, name, quota.DefaultLabels(), quotas, s.log)
		if err != nil {
			return nil, err
		}
		f.task(func() {
			gpus.Start(ctx.Done())
			<-ctx.Done()
			gpus.Shutdown()
		})
	}
	if s.keys != nil {
		f.task(func() { s.keys.Run(ctx) })
	}
	if f.Beside != nil {
		f.task(func() { f.Beside(ctx, s.engine, s.feeding) })
	}
	resizer, err := s.feeding.Resizer(informers, f.resizer(s, handle))
	if err != nil {
		return nil, err
	}
	f.task(func() { resizer.Run(ctx) })
	return s, nil
}

// task runs until the context of New ends.
func (f *Factory) task(run func()) { f.tasks.Go(run) }
