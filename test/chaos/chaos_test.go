//go:build chaos

package chaos

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/harness"
)

var (
	rounds   = flag.Int("rounds", 1, "how often each scenario is played")
	labs     = flag.Int("labs", 1, "how many control planes play at once, each its own rounds")
	during   = flag.Duration("during", 0, "begin no further round after this time; 0: play all rounds")
	binary   = flag.String("scheduler", "", "another gpuslice-scheduler than the one in build/bin, to see how an earlier version behaves")
	policies = flag.Bool("policies", true, "bind the admission policies; without them only the scheduler itself keeps two leaders apart")
	logs     = flag.String("logs", "", "copy the logs of all programs to this directory")
	seed     = flag.Uint64("seed", 0, "of the load's random numbers; 0: a new one")
)

// stuck is how long a pod may wait after a fault has ended.
const stuck = time.Minute

// scenario is a fault: play begins it and ends it.
type scenario struct {
	name string
	play func(ctx context.Context, l *lab) error
}

var scenarios = []scenario{
	{"leader frozen", frozen},
	{"leader partitioned", partitioned},
	{"binding delayed", bindingDelayed},
	{"killed between reserve and bind", killedBeforeBind},
	{"clock skew", clockSkew},
	{"API server frozen", apiServerFrozen},
	{"requests twice", requestsTwice},
	{"nodes deleted", nodesDeleted},
	{"GPUs flap", gpusFlap},
	{"annotations late or old", annotationsLate},
	{"handover", handover},
	{"pods refused", refused},
}

func TestPlugin(t *testing.T) { play(t, plugin, scenarios) }

// With the extender, the elected kube-scheduler and the extender beside it are on one host.
func TestExtender(t *testing.T) { play(t, withExtender, scenarios) }

func play(t *testing.T, k kind, scenarios []scenario) {
	ctx, cancel := signal.NotifyContext(t.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("-seed=%d", *seed)
	var mu sync.Mutex
	began, played := time.Time{}, 0
	next := func() (name string, s scenario, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if played == 0 {
			began = time.Now()
		}
		round, i := played/len(scenarios)+1, played%len(scenarios)
		if *during > 0 && time.Since(began) > *during {
			t.Logf("ended after %v, in round %d", time.Since(began).Round(time.Second), round)
			return "", scenario{}, false
		}
		played++
		return fmt.Sprintf("%d/%s", round, scenarios[i].name), scenarios[i], round <= *rounds
	}
	var playing sync.WaitGroup
	defer playing.Wait()
	for number := range *labs {
		playing.Go(func() {
			l, err := newLab(ctx, k, number, 2, *seed+uint64(number))
			defer func() { assert.NoError(t, l.close()) }()
			if !assert.NoError(t, err) {
				return
			}
			l.begin(ctx)
			defer l.end()
			if !assert.NoError(t, l.progress(ctx, 20, 2*time.Minute)) {
				return
			}
			for {
				name, s, ok := next()
				if !ok {
					return
				}
				t.Run(name, func(t *testing.T) { l.round(ctx, t, s) })
			}
		})
	}
}

func (l *lab) round(ctx context.Context, t *testing.T, s scenario) {
	before := l.audit.boundPods()
	began := time.Now()
	err := s.play(ctx, l)
	for _, r := range l.replicas { // whatever has failed
		_ = r.thaw()
		for _, p := range r.proxies {
			p.heal()
			p.repeat(0, 0)
			p.setSkew(0)
		}
	}
	require.NoError(t, err)
	fault := time.Since(began)
	settled := l.settle(ctx, stuck)
	violations, err := l.audit.take()
	require.NoError(t, err)
	require.Zero(t, len(violations), strings.Join(violations, "\n"))
	require.NoError(t, settled)
	t.Logf("%d pods bound; fault %.1f s, settled after %.1f s", l.audit.boundPods()-before, fault.Seconds(), (time.Since(began) - fault).Seconds())
}

// frozen: the leader stops, another takes over, and then it goes on.
func frozen(ctx context.Context, l *lab) error {
	leader, err := l.leader(ctx)
	if err != nil {
		return err
	}
	if err := leader.freeze(ctx); err != nil {
		return err
	}
	if err := l.other(ctx, leader); err != nil {
		return err
	}
	if err := l.progress(ctx, 10, stuck); err != nil {
		return err
	}
	if err := leader.thaw(); err != nil {
		return err
	}
	return l.progress(ctx, 30, stuck)
}

// partitioned: the leader's traffic is held back in both directions, until another leads; then all of it arrives.
func partitioned(ctx context.Context, l *lab) error {
	leader, err := l.leader(ctx)
	if err != nil {
		return err
	}
	for _, p := range leader.proxies {
		p.partition()
	}
	if err := l.other(ctx, leader); err != nil {
		return err
	}
	if err := l.progress(ctx, 10, stuck); err != nil {
		return err
	}
	for _, p := range leader.proxies {
		p.heal()
	}
	return l.progress(ctx, 20, stuck)
}

// bindingDelayed: one Binding of the leader is held back, and the leader's Lease is not renewed: the Binding arrives while
// another leads.
func bindingDelayed(ctx context.Context, l *lab) error {
	leader, release, err := l.catchBinding(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := leader.freeze(ctx); err != nil {
		return err
	}
	if err := l.other(ctx, leader); err != nil {
		return err
	}
	if l.float() < 0.5 { // also while the new leader begins
		if err := l.progress(ctx, 3, stuck); err != nil {
			return err
		}
	}
	release()
	if err := l.progress(ctx, 5, stuck); err != nil {
		return err
	}
	return leader.thaw()
}

// catchBinding returns when the leader has reserved GPUs for a pod, and its Binding is held back.
func (l *lab) catchBinding(ctx context.Context) (*replica, func(), error) {
	leader, err := l.leader(ctx)
	if err != nil {
		return nil, nil, err
	}
	caught := make(chan struct{})
	p := leader.proxies["scheduler"]
	if p == nil {
		p = leader.proxies["extender"]
	}
	release := p.catch(isBinding, func() { close(caught) })
	select {
	case <-caught:
		return leader, release, nil
	case <-time.After(stuck):
	case <-ctx.Done():
	}
	release()
	return nil, nil, fmt.Errorf("no pod was bound by %s", leader.host)
}

// killedBeforeBind: the leader is killed when it has sent a Binding, which arrives when another leads.
func killedBeforeBind(ctx context.Context, l *lab) error {
	leader, release, err := l.catchBinding(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := leader.kill(); err != nil {
		return err
	}
	if err := l.progress(ctx, 3, stuck); err != nil {
		return err
	}
	release()
	return l.progress(ctx, 10, stuck)
}

// clockSkew: the replicas' clocks differ by 30 s, first in the one and then in the other direction, and the leader freezes.
// The times in the Lease are all that one replica sees of another's clock: the proxy changes them.
func clockSkew(ctx context.Context, l *lab) error {
	leader, err := l.leader(ctx)
	if err != nil {
		return err
	}
	by := 30 * time.Second
	if l.float() < 0.5 {
		by = -by
	}
	for _, p := range leader.proxies {
		p.setSkew(by)
	}
	if err := l.progress(ctx, 10, stuck); err != nil {
		return err
	}
	return frozen(ctx, l)
}

// handover: the leader ends in order.
func handover(ctx context.Context, l *lab) error {
	leader, err := l.leader(ctx)
	if err != nil {
		return err
	}
	leader.mu.Lock()
	for _, p := range leader.processes {
		_ = p.Signal(syscall.SIGTERM)
	}
	leader.mu.Unlock()
	return l.progress(ctx, 20, stuck)
}

// apiServerFrozen: for a moment, and for longer than a Lease.
func apiServerFrozen(ctx context.Context, l *lab) error {
	for _, pause := range []time.Duration{l.between(100*time.Millisecond, time.Second), l.between(time.Second, 7*time.Second)} {
		if err := l.cluster.APIServer.Suspend(ctx); err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		if err := l.cluster.APIServer.Signal(syscall.SIGCONT); err != nil {
			return err
		}
		if err := l.progress(ctx, 5, stuck); err != nil {
			return err
		}
	}
	return nil
}

// requestsTwice: writes arrive a second time, up to 2 s later, and answers get lost.
func requestsTwice(ctx context.Context, l *lab) error {
	for _, r := range l.replicas {
		for _, p := range r.proxies {
			p.repeat(0.3, 0.1)
		}
	}
	err := l.progress(ctx, 40, 2*stuck)
	for _, r := range l.replicas {
		for _, p := range r.proxies {
			p.repeat(0, 0)
			p.late.Wait()
		}
	}
	return err
}

func nodesDeleted(ctx context.Context, l *lab) error {
	for i := range nodes / 2 {
		if err := l.api.CoreV1().Nodes().Delete(ctx, nodeName(i), metav1.DeleteOptions{}); err != nil {
			return err
		}
		if err := l.progress(ctx, 3, stuck); err != nil {
			return err
		}
		if err := l.makeNode(ctx, i); err != nil {
			return err
		}
	}
	return l.progress(ctx, 10, stuck)
}

func gpusFlap(ctx context.Context, l *lab) error {
	for range 10 {
		for i := range nodes {
			var broken []int
			for c := range gpusOfNode {
				if l.float() < 0.3 {
					broken = append(broken, c)
				}
			}
			if err := l.annotateNode(ctx, i, api.AnnotationNodeGPUs, registered(i, broken...)); err != nil {
				return err
			}
		}
		if err := l.progress(ctx, 1, stuck); err != nil {
			return err
		}
	}
	return l.registerAll(ctx)
}

// annotationsLate: nodes without their agent's annotation, and with one of an earlier time, while the leader changes.
func annotationsLate(ctx context.Context, l *lab) error {
	old := make([]string, nodes)
	for i := range nodes {
		old[i] = registered(i, i%gpusOfNode)
		if i%2 == 0 {
			if err := l.annotateNode(ctx, i, api.AnnotationNodeGPUs, nil); err != nil {
				return err
			}
		}
	}
	leader, err := l.leader(ctx)
	if err != nil {
		return err
	}
	if err := leader.kill(); err != nil {
		return err
	}
	if err := l.progress(ctx, 3, stuck); err != nil {
		return err
	}
	for i := range nodes {
		if err := l.annotateNode(ctx, i, api.AnnotationNodeGPUs, old[i]); err != nil {
			return err
		}
	}
	if err := l.progress(ctx, 3, stuck); err != nil {
		return err
	}
	return l.registerAll(ctx)
}

func (l *lab) registerAll(ctx context.Context) error {
	for i := range nodes {
		if err := l.annotateNode(ctx, i, api.AnnotationNodeGPUs, registered(i)); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// refused: nodes report pods that they have no room for, while the leader changes. The pods are evicted, with an event, and what
// takes their place is placed.
func refused(ctx context.Context, l *lab) error {
	l.pause(true) // so that the load does not delete the pods
	defer l.pause(false)
	victims := map[int]*v1.Pod{}
	err := harness.Until(ctx, stuck, func(ctx context.Context) error {
		pods, err := l.api.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			for i := range nodes {
				if p.Spec.NodeName == nodeName(i) {
					victims[i] = &p
				}
			}
		}
		if len(victims) < nodes {
			return fmt.Errorf("only %d nodes have pods", len(victims))
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, victim := range victims {
		if err := l.own(ctx, victim, "load-of-"+victims[0].Name); err != nil {
			return err
		}
		list, err := json.Marshal([]api.RefusedPod{{UID: string(victim.UID), Container: "main", Reason: "the GPU is full"}})
		if err != nil {
			return err
		}
		if err := l.annotateNode(ctx, i, api.AnnotationNodeRefused, string(list)); err != nil {
			return err
		}
	}
	leader, err := l.leader(ctx)
	if err != nil {
		return err
	}
	// If it were killed at once, it could lead again before the other one, which may just have ended too, has started.
	if err := leader.freeze(ctx); err != nil {
		return err
	}
	if err := l.other(ctx, leader); err != nil {
		return err
	}
	if err := leader.kill(); err != nil {
		return err
	}
	for _, victim := range victims {
		err := harness.Until(ctx, stuck, func(ctx context.Context) error {
			p, err := l.api.CoreV1().Pods(namespace).Get(ctx, victim.Name, metav1.GetOptions{})
			if err == nil && p.UID == victim.UID && p.DeletionTimestamp == nil {
				return fmt.Errorf("pod %s is not evicted", victim.Name)
			}
			return nil
		})
		if err != nil {
			return err
		}
		now := int64(0) // what the kubelet does when the containers have ended
		err = l.api.CoreV1().Pods(namespace).Delete(ctx, victim.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	for i, victim := range victims {
		if err := l.annotateNode(ctx, i, api.AnnotationNodeRefused, nil); err != nil {
			return err
		}
		err := harness.Until(ctx, stuck, func(ctx context.Context) error {
			events, err := l.api.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=GPUSliceEvicted,involvedObject.name=" + victim.Name})
			if err == nil && len(events.Items) == 0 {
				err = fmt.Errorf("pod %s has no event", victim.Name)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	l.pause(false)
	return l.progress(ctx, 10, stuck)
}
