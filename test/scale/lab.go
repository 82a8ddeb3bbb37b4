package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

const (
	gpusOfNode    = 8
	memoryOfGPU   = 81559
	schedulerName = "gpuslice-scheduler"
	namespace     = "default"
	// atOnce is how many calls make objects.
	atOnce = 32
)

// lab is a cluster of objects.
type lab struct {
	cluster     *kube.Cluster
	nodes, pods int
	names       []string

	mu sync.Mutex
	// The processor time of these processes counts, and that of earlier ones.
	scheduler []*harness.Process
	earlier   time.Duration
}

func (l *lab) makeNodes(ctx context.Context) error {
	if err := kube.CreateServiceAccount(ctx, l.cluster.API, namespace); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range l.nodes {
		l.names = append(l.names, fmt.Sprintf("node-%04d", i))
		g.Go(func() error {
			return kube.CreateNode(ctx, l.cluster.API, l.names[i], gpusOfNode, kube.GPUs(i, gpusOfNode, memoryOfGPU, nil))
		})
	}
	return g.Wait()
}

// makePods makes pods that wait.
func (l *lab) makePods(ctx context.Context, gpus bool) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range l.pods {
		g.Go(func() error {
			_, err := l.cluster.API.CoreV1().Pods(namespace).Create(ctx, newPod(fmt.Sprintf("pod-%05d", i), gpus), metav1.CreateOptions{})
			return err
		})
	}
	return g.Wait()
}

func newPod(name string, gpus bool) *v1.Pod {
	limits := v1.ResourceList{"cpu": resource.MustParse("100m")}
	if gpus {
		limits["nvidia.com/gpu"] = resource.MustParse("1")
		limits["nvidia.com/gpumem"] = resource.MustParse("8000")
		limits["nvidia.com/gpucores"] = resource.MustParse("10")
	}
	none := false
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{
			SchedulerName: schedulerName, AutomountServiceAccountToken: &none,
			Containers: []v1.Container{{Name: "main", Image: "none", Resources: v1.ResourceRequirements{Limits: limits}}},
		},
	}
}

func (l *lab) deletePods(ctx context.Context) error {
	now := int64(0)
	err := l.cluster.API.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
	for err == nil {
		var left *v1.PodList
		if left, err = l.cluster.API.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1}); err == nil && len(left.Items) == 0 {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

// seen is what a row has shown, from the first bind to the last.
type seen struct {
	pods      int
	took      time.Duration
	scheduler time.Duration // processor time of what places pods
	server    time.Duration // processor time of etcd and kube-apiserver
}

func (s seen) rate() float64 { return float64(s.pods-1) / s.took.Seconds() }

// perPod is milliseconds.
func (s seen) perPod(d time.Duration) float64 { return d.Seconds() * 1000 / float64(s.pods-1) }

// used is what processes have computed until now.
type used struct {
	at                time.Time
	scheduler, server time.Duration
}

func (l *lab) used() used {
	u := used{at: time.Now(), server: cpuOf(l.cluster.Etcd.PID()) + cpuOf(l.cluster.APIServer.PID())}
	l.mu.Lock()
	defer l.mu.Unlock()
	u.scheduler = l.earlier
	for _, p := range l.scheduler {
		u.scheduler += cpuOf(p.PID())
	}
	return u
}

// measure lets bind bind all pods, and ends it then.
func (l *lab) measure(ctx context.Context, bind func(context.Context, *lab) error) (s seen, err error) {
	list, err := l.cluster.API.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	version := list.ResourceVersion
	w, err := l.watch(ctx, version)
	if err != nil {
		return s, err
	}
	defer func() { w.Stop() }()
	binding, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- bind(binding, l) }()
	running := true
	defer func() {
		if stop(); !running {
			return
		}
		// Callers may be waiting for an answer of which the watch knew first.
		if last := <-ended; !errors.Is(last, context.Canceled) {
			err = errors.Join(err, last)
		}
	}()
	bound := map[string]bool{}
	var first used
	for {
		select {
		case <-ctx.Done():
			return s, fmt.Errorf("%d of %d pods are bound: %w", len(bound), l.pods, context.Cause(ctx))
		case err := <-ended:
			if running = false; err != nil {
				return s, err
			}
			// It has done its part; the watch is a moment behind.
		case event, ok := <-w.ResultChan():
			if !ok { // the API server ends them as it likes
				if w, err = l.watch(ctx, version); err != nil {
					return s, err
				}
				continue
			}
			if p, isPod := event.Object.(*v1.Pod); isPod {
				version = p.ResourceVersion
			}
			if l.count(event, bound, &first) {
				return l.result(bound, first), nil
			}
		}
	}
}

func (l *lab) watch(ctx context.Context, version string) (watch.Interface, error) {
	return l.cluster.API.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: version})
}

// count records a bind, and reports whether it was the last.
func (l *lab) count(event watch.Event, bound map[string]bool, first *used) bool {
	p, ok := event.Object.(*v1.Pod)
	if !ok || event.Type != watch.Modified || p.Spec.NodeName == "" || bound[p.Name] {
		return false
	}
	if len(bound) == 0 {
		*first = l.used()
	}
	bound[p.Name] = true
	return len(bound) == l.pods
}

func (l *lab) result(bound map[string]bool, first used) seen {
	last := l.used()
	return seen{pods: len(bound), took: last.at.Sub(first.at), scheduler: last.scheduler - first.scheduler, server: last.server - first.server}
}

// measured makes the processor time of a process count, until it is stopped.
func (l *lab) measured(p *harness.Process) (stop func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.scheduler = append(l.scheduler, p)
	return func() error {
		l.mu.Lock()
		l.earlier += cpuOf(p.PID())
		l.scheduler = slices.DeleteFunc(l.scheduler, func(other *harness.Process) bool { return other == p })
		l.mu.Unlock()
		return p.Stop(harness.StopPatience)
	}
}

// audit counts the nodes with pods, and adds up what the pods' annotations give.
func (l *lab) audit(ctx context.Context, gpus bool) (used int, err error) {
	pods, err := l.cluster.API.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	nodes := map[string]bool{}
	for i := range pods.Items {
		nodes[pods.Items[i].Spec.NodeName] = true
	}
	if !gpus {
		return len(nodes), nil
	}
	memory, cores, replicas := map[string]int64{}, map[string]int{}, map[string]int{}
	for i := range pods.Items {
		p := &pods.Items[i]
		g, err := grant.DecodeGrant(p.Annotations[api.AnnotationGrant])
		if err != nil {
			return 0, fmt.Errorf("pod %s: %w", p.Name, err)
		}
		if g.Node != p.Spec.NodeName {
			return 0, fmt.Errorf("pod %s is on node %s, and its grant is for %s", p.Name, p.Spec.NodeName, g.Node)
		}
		for _, shares := range g.Containers {
			for _, s := range shares {
				memory[s.UUID] += s.MemoryMiB
				cores[s.UUID] += s.CorePercent
				replicas[s.UUID]++
			}
		}
	}
	var over []string
	for uuid := range replicas {
		if memory[uuid] > memoryOfGPU || cores[uuid] > 100 || replicas[uuid] > kube.ReplicasOfGPU {
			over = append(over, fmt.Sprintf("%s: %d MiB, %d %%, %d replicas", uuid, memory[uuid], cores[uuid], replicas[uuid]))
		}
	}
	if len(over) > 0 {
		return 0, fmt.Errorf("reserved twice: %s", strings.Join(over, "; "))
	}
	return len(nodes), nil
}
