// Package plugin is a plugin of kube-scheduler's framework that schedules GPUs: see Factory.New.
// NodeResourcesFit has to ignore memory and cores, which are in no node's allocatable (see
// install/scheduler/config.yaml); the kubelet removes unknown extended resources from a pod
// (Kubernetes 1.36, removeMissingExtendedResources).
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/fence"
	"github.com/gpuslice/gpuslice/scheduler/gang"
	"github.com/gpuslice/gpuslice/scheduler/gang/podgroups"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/metrics"
)

// Name is the plugin's name in profiles.
const Name = "GPUSlice"

// reservationTTL is only a safeguard: kube-scheduler always calls Unreserve.
const reservationTTL = 30 * time.Minute

const component = "plugin"

// Factory creates the plugin for each profile of a process. They share one engine.
type Factory struct {
	// Metrics, Log, Started, Serve and Fence may be nil.
	Metrics *metrics.Metrics
	Log     *slog.Logger
	// Started is called once, with an empty engine.
	Started func(*engine.Engine, *Args)
	// Serve runs until its context ends.
	Serve func(context.Context, *engine.Engine, *kube.Feed)
	// NativeGroups reports whether kube-scheduler itself schedules the groups of spec.schedulingGroup; nil: it does not.
	NativeGroups func() bool
	// PodGroups reads PodGroup objects; nil: a client with kube-scheduler's configuration.
	PodGroups dynamic.Interface
	// Fence waits until this process is configured; nil: there is no election.
	Fence func() *fence.Fence

	mu       sync.Mutex
	args     *Args
	shared   *shared
	profiles sync.Map // by name
	tasks    sync.WaitGroup
}

// shared is the state that the plugins of all profiles share.
type shared struct {
	args         *Args
	engine       *engine.Engine
	feed         *kube.Feed
	informerSync *informerSync
	groups       *groups
	quotaQueue   *quotaQueue
	evictor      *kube.Evictor
	budgets      policylisters.PodDisruptionBudgetLister
	pods         corelisters.PodLister
	nodes        corelisters.NodeLister
	client       kubernetes.Interface
	event        func(pod *v1.Pod, kind, reason, message string)
	plans        *plans // nil: groupPreemption is off
	gpuNodes     gpuNodes
	secondTries  *secondTries
	keys         *grant.SigningKeyFile // nil: unsigned grants
	metrics      *metrics.Metrics
	log          *slog.Logger
	bypassed     atomic.Bool // another plugin bound a pod with GPUs
	takeover     func() *kube.Takeover
}

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

func (p *Plugin) Name() string { return Name }

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
		return nil, fmt.Errorf("args of plugin %s in profile %q differ from those of other profiles: all profiles share "+
			"one state of the GPUs, so use the same args", Name, handle.ProfileName())
	}
	p := &Plugin{f.shared, handle}
	f.profiles.Store(handle.ProfileName(), true)
	f.shared.groups.setHandle(handle)
	return p, nil
}

// Wait waits until the tasks that New started have ended with its context.
func (f *Factory) Wait() { f.tasks.Wait() }

func (f *Factory) start(ctx context.Context, args *Args, handle fwk.Handle) (*shared, error) {
	s := &shared{args: args, metrics: f.Metrics, log: f.Log, quotaQueue: newQuotaQueue(), secondTries: newSecondTries(),
		client: handle.ClientSet(), event: eventsOf(handle, "Preempting")}
	if args.GroupPreemption {
		s.plans = newPlans()
	}
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
			return nil, fmt.Errorf("no key to sign grants: %w", err)
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
	s.evictor = kube.NewEvictor(handle.ClientSet(), s.engine, s.log)
	s.budgets, s.pods = informers.Policy().V1().PodDisruptionBudgets().Lister(), informers.Core().V1().Pods().Lister()
	s.nodes = informers.Core().V1().Nodes().Lister()
	if s.feed, err = kube.NewFeed(informers, resizeSink{s.engine, handle}); err != nil {
		return nil, err
	}
	s.informerSync = newInformerSync(s.feed)
	if s.groups, err = newGroups(informers, args.GroupTimeout.Duration, f.NativeGroups != nil && f.NativeGroups()); err != nil {
		return nil, err
	}
	if s.plans != nil {
		s.groups.late = map[gang.Name]bool{}
	}
	podGroups, err := f.podGroups(s, handle)
	if err != nil {
		return nil, err
	}
	s.groups.minimums = podGroups
	f.tasks.Go(func() { podGroups.Run(ctx) })
	if _, err := informers.Core().V1().Pods().Informer().AddEventHandler(kube.Handler[*v1.Pod]{Gone: s.forget}); err != nil {
		return nil, err
	}
	quotas := quotaSink{s.engine, s.quotaQueue}
	if err := s.feed.Quotas(informers, quotas, options.Request, s.log); err != nil {
		return nil, err
	}
	if namespace, name := args.GPUQuotaName(); name != "" {
		gpus, err := s.feed.GPUQuota(handle.ClientSet(), namespace, name, quotas, s.log)
		if err != nil {
			return nil, err
		}
		f.tasks.Go(func() {
			gpus.Start(ctx.Done())
			<-ctx.Done()
			gpus.Shutdown()
		})
	}
	if s.keys != nil {
		f.tasks.Go(func() { s.keys.Run(ctx) })
	}
	if f.Serve != nil {
		f.tasks.Go(func() { f.Serve(ctx, s.engine, s.feed) })
	}
	s.takeover = sync.OnceValue(func() *kube.Takeover { return f.newTakeover(s, handle) })
	resizer, err := s.feed.Resizer(informers, f.resizer(s, handle))
	if err != nil {
		return nil, err
	}
	refusals, err := s.feed.Refusals(informers, kube.RefusalsConfig{
		Client: handle.ClientSet(), Log: s.log, Ours: resizer.Ours, Event: eventsOf(handle, "Evict"),
		Term: func() (fence.Term, error) { return s.takeover().Fence.Term() },
	})
	if err != nil {
		return nil, err
	}
	if s.plans != nil {
		f.tasks.Go(func() { s.runPlans(ctx) })
	}
	f.tasks.Go(func() { resizer.Run(ctx) })
	f.tasks.Go(func() { refusals.Run(ctx) })
	return s, nil
}

func (f *Factory) podGroups(s *shared, handle fwk.Handle) (*podgroups.Reader, error) {
	client := f.PodGroups
	if config := handle.KubeConfig(); client == nil && config != nil {
		made, err := dynamic.NewForConfig(config)
		if err != nil {
			return nil, fmt.Errorf("read PodGroups: %w", err)
		}
		client = made
	}
	return podgroups.New(handle.ClientSet().Discovery(), client, s.log, s.groups.podGroupChanged), nil
}

// forget is for a pod that is placed or gone.
func (s *shared) forget(pod *v1.Pod) {
	s.quotaQueue.remove(pod)
	s.secondTries.remove(pod)
	if s.plans == nil {
		return
	}
	s.plans.unblock(pod)
	if _, in := s.groups.name(pod); in {
		periodic.Wake(s.plans.wake)
	}
}

func (f *Factory) newTakeover(s *shared, handle fwk.Handle) *kube.Takeover {
	t := &kube.Takeover{
		Client: handle.ClientSet(), Feed: s.feed, Forget: s.engine.Forget, Log: s.log,
		RequestsGPUs: func(p *v1.Pod) bool {
			r, err := s.engine.Request(convert.Pod(p))
			return r != nil || err != nil
		},
	}
	if f.Fence != nil {
		t.Fence = f.Fence()
	}
	return t
}

// There is no PreEnqueue, because a pod that it rejects gets no event with the reason.

// informerSync updates the engine to kube-scheduler's snapshot: both use the same informers at different pace,
// and a pod that is retried before the engine receives a deletion would be rejected for good.
type informerSync struct {
	feed *kube.Feed

	mu    sync.Mutex
	nodes map[string]*seenNode
	order []*seenNode // usually the same in the next cycle
	// images counts the nodes that have an image.
	images map[string]int
}

type seenNode struct {
	name       string
	generation int64
	node       *v1.Node
	info       fwk.NodeInfo // of the current cycle
	pods       map[types.UID]*v1.Pod
}

func newInformerSync(f *kube.Feed) *informerSync {
	return &informerSync{feed: f, nodes: map[string]*seenNode{}, images: map[string]int{}}
}

// update costs a comparison per node, and the pods of changed nodes. kube-scheduler keeps its NodeInfos, and the order.
func (s *informerSync) update(nodes []fwk.NodeInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0 // of order
	for _, info := range nodes {
		if n < len(s.order) && s.order[n].info == info && s.order[n].generation == info.GetGeneration() {
			n++ // as in the last cycle
			continue
		}
		node := info.Node()
		if node == nil { // deleted, with pods left
			continue
		}
		last := s.nodes[node.Name]
		if last == nil || last.generation != info.GetGeneration() {
			last = s.updateNode(last, info)
			s.nodes[node.Name] = last
		}
		last.info = info
		if n < len(s.order) {
			s.order[n] = last
		} else {
			s.order = append(s.order, last)
		}
		n++
	}
	s.order = s.order[:n]
	if len(s.nodes) > n {
		clear(s.nodes)
		clear(s.images)
		for _, n := range s.order {
			s.nodes[n.name] = n
			s.countImages(n.node, 1)
		}
	}
}

func (s *informerSync) countImages(node *v1.Node, by int) {
	for _, image := range node.Status.Images {
		for _, name := range image.Names {
			s.images[name] += by
		}
	}
}

// reserved makes the next update notice if the pod is gone.
func (s *informerSync) reserved(node string, pod *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; n != nil {
		n.pods[pod.UID] = pod
	}
}

func (s *informerSync) updateNode(last *seenNode, info fwk.NodeInfo) *seenNode {
	node := info.Node()
	now := &seenNode{name: node.Name, generation: info.GetGeneration(), node: node, pods: make(map[types.UID]*v1.Pod, len(info.GetPods()))}
	for _, pi := range info.GetPods() {
		now.pods[pi.GetPod().UID] = pi.GetPod()
	}
	if last == nil || last.node != node {
		s.countImages(node, 1)
		if last != nil {
			s.countImages(last.node, -1)
		}
	}
	if last == nil || last.node != node && !kube.SameNode(last.node, node) {
		s.feed.Node(node.Name)
	}
	if last != nil {
		for uid, pod := range last.pods {
			if _, there := now.pods[uid]; !there {
				s.feed.Pod(pod)
			}
		}
	}
	return now
}
