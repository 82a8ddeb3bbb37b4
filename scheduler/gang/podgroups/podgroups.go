// Package podgroups reads the PodGroup objects of Kubernetes, coscheduling and Volcano. The plugin and the extender use
// it.
package podgroups

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/scheduler/gang"
)

// resource is the same in all APIs.
const resource = "podgroups"

// sources are the PodGroups by API. The first version that the API server has is read.
var sources = [gang.APIs]struct {
	versions []string
	minimum  []string // its field
}{
	gang.Coscheduling: {[]string{"v1alpha1"}, []string{"spec", "minMember"}},
	gang.Volcano:      {[]string{"v1beta1"}, []string{"spec", "minMember"}},
	gang.Kubernetes:   {[]string{"v1alpha2"}, []string{"spec", "schedulingPolicy", "gang", "minCount"}},
}

// discoverInterval is how often an API that the API server does not have is looked for.
const discoverInterval = 10 * time.Second

// Reader reads PodGroup objects. It watches those of an API from the first pod on that names a group of it, so that
// a cluster without such pods needs neither the API nor a permission.
type Reader struct {
	discovery discovery.DiscoveryInterface
	client    dynamic.Interface
	log       *slog.Logger
	changed   func(gang.Name)
	interval  time.Duration
	sources   [gang.APIs]*source
}

// New returns a Reader that calls changed with each PodGroup that was added, changed or deleted. Without a
// client no PodGroup is found.
func New(discovery discovery.DiscoveryInterface, client dynamic.Interface, log *slog.Logger, changed func(gang.Name)) *Reader {
	p := &Reader{discovery: discovery, client: client, log: log, changed: changed, interval: discoverInterval}
	for i := range p.sources {
		p.sources[i] = &source{api: gang.API(i), wake: make(chan struct{}, 1), problem: errReading, asked: map[gang.Name]bool{}}
	}
	return p
}

// source is the state of one API's PodGroups.
type source struct {
	api  gang.API
	wake chan struct{}

	mu       sync.Mutex
	problem  error // why no object can be read
	informer cache.SharedIndexInformer
	asked    map[gang.Name]bool // while none could be read
}

var (
	errReading   = errors.New("its PodGroup is being read")
	errNoClient  = errors.New("PodGroups can't be read without a connection to the API server")
	errNotServed = errors.New("the API server does not have them")
)

// Find returns the PodGroup's demands.
func (p *Reader) Find(name gang.Name) (gang.Spec, error) {
	s := p.sources[name.API]
	if p.client == nil {
		return gang.Spec{}, fmt.Errorf("%w: %s", errNoClient, hint)
	}
	periodic.Wake(s.wake)
	objects, problem := s.read(name)
	if errors.Is(problem, errReading) {
		return gang.Spec{}, problem
	}
	if problem != nil {
		return gang.Spec{}, fmt.Errorf("no PodGroups of %s can be read (%w): %s", gang.Groups[name.API], problem, hint)
	}
	object, there, err := objects.GetByKey(name.Namespace + "/" + name.Name)
	u, ok := object.(*unstructured.Unstructured)
	if err != nil || !there || !ok {
		return gang.Spec{}, fmt.Errorf("there is no PodGroup %s of %s: %s", name.Name, gang.Groups[name.API], hint)
	}
	return spec(name.API, u)
}

const hint = "create it, or set the annotation " + api.AnnotationGroupMin + " of the pods"

func (s *source) read(name gang.Name) (cache.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.informer != nil && s.informer.HasSynced() {
		return s.informer.GetStore(), nil
	}
	s.asked[name] = true
	return nil, s.problem
}

func spec(of gang.API, u *unstructured.Unstructured) (s gang.Spec, err error) {
	minimum, _, err := unstructured.NestedInt64(u.Object, sources[of].minimum...)
	if err != nil {
		return s, fmt.Errorf("PodGroup %s: %w", u.GetName(), err)
	}
	s.Minimum = int(max(1, min(minimum, math.MaxInt32)))
	if of == gang.Coscheduling {
		seconds, _, err := unstructured.NestedInt64(u.Object, "spec", "scheduleTimeoutSeconds")
		if err != nil {
			return s, fmt.Errorf("PodGroup %s: %w", u.GetName(), err)
		}
		s.Timeout = time.Duration(max(0, min(seconds, math.MaxInt32))) * time.Second
	}
	return s, nil
}

// Run reads until ctx ends.
func (p *Reader) Run(ctx context.Context) {
	if p.client == nil {
		return
	}
	var wg sync.WaitGroup
	for _, s := range p.sources {
		wg.Go(func() {
			select {
			case <-ctx.Done():
				return
			case <-s.wake:
			}
			for {
				p.follow(ctx, s)
				if !periodic.Sleep(ctx, p.interval) {
					return
				}
			}
		})
	}
	wg.Wait()
}

// follow returns if the API server does not have the API, or has it no longer.
func (p *Reader) follow(ctx context.Context, s *source) {
	version, err := p.version(s.api)
	if err != nil {
		p.fail(s, err)
		return
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	factory := dynamicinformer.NewDynamicSharedInformerFactory(p.client, 0)
	informer := factory.ForResource(version.WithResource(resource)).Informer()
	_ = informer.SetTransform(slim) // fails only after the start
	_ = informer.SetWatchErrorHandler(func(_ *cache.Reflector, err error) {
		if apierrors.IsNotFound(err) { // the CRD was deleted
			end()
		}
		if !informer.HasSynced() {
			p.fail(s, err)
		}
	})
	notify := func(object any) {
		if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		if u, ok := object.(*unstructured.Unstructured); ok {
			p.changed(gang.Name{API: s.api, Namespace: u.GetNamespace(), Name: u.GetName()})
		}
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: notify, DeleteFunc: notify, UpdateFunc: func(_, object any) { notify(object) },
	})
	if err != nil {
		p.fail(s, err)
		return
	}
	s.set(informer, errReading)
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer end()
	if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		p.answer(s)
	}
	<-ctx.Done()
	s.set(nil, errReading)
}

// answer reports the groups that were asked for before.
func (p *Reader) answer(s *source) {
	s.mu.Lock()
	asked := s.asked
	s.asked = map[gang.Name]bool{}
	s.mu.Unlock()
	for name := range asked {
		p.changed(name)
	}
}

func (p *Reader) version(of gang.API) (schema.GroupVersion, error) {
	for _, version := range sources[of].versions {
		gv := schema.GroupVersion{Group: gang.Groups[of], Version: version}
		list, err := p.discovery.ServerResourcesForGroupVersion(gv.String())
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return gv, err
		}
		for _, r := range list.APIResources {
			if r.Name == resource {
				return gv, nil
			}
		}
	}
	return schema.GroupVersion{}, errNotServed
}

// slim keeps what spec reads.
func slim(object any) (any, error) {
	if u, ok := object.(*unstructured.Unstructured); ok {
		u.SetManagedFields(nil)
		u.SetAnnotations(nil)
		u.SetOwnerReferences([]metav1.OwnerReference(nil))
		delete(u.Object, "status")
	}
	return object, nil
}

// fail logs each problem once.
func (p *Reader) fail(s *source, err error) {
	s.mu.Lock()
	known := s.problem.Error() == err.Error()
	s.problem = err
	s.mu.Unlock()
	if !known {
		p.log.Warn("can't read PodGroups: pods of such groups wait", "api", gang.Groups[s.api], "error", err)
		p.answer(s)
	}
}

func (s *source) set(informer cache.SharedIndexInformer, problem error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.informer, s.problem = informer, problem
}
