package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler/defrag"
	"github.com/gpuslice/gpuslice/scheduler/engine"
)

// Plan requests a plan for a pending pod from the schedulers. A replica that does not lead has the same state, apart
// from reservations.
func (c *Cluster) Plan(ctx context.Context, namespace, name string) (plan defrag.Plan, err error) {
	servers, _, err := c.servers(ctx, componentScheduler)
	if err != nil {
		return plan, err
	}
	for i := range servers {
		plan = defrag.Plan{}
		one := c.request(ctx, &servers[i], portHTTP, "/debug/defrag", map[string]string{"namespace": namespace, "pod": name}, &plan)
		if one == nil {
			return plan, nil
		}
		err = errors.Join(err, fmt.Errorf("scheduler %s/%s: %w", servers[i].Namespace, servers[i].Name, one))
	}
	return plan, err
}

// Carry carries out a plan: it resizes or evicts its pods, and waits until the pending pod is placed or ctx ends.
func (c *Cluster) Carry(ctx context.Context, plan defrag.Plan, how Evictions) error {
	for _, r := range plan.Resizes {
		if err := c.shrink(ctx, r); err != nil {
			return err
		}
		how.Report("pod %s is resized", r.Pod)
	}
	if err := c.move(ctx, plan, how); err != nil {
		return err
	}
	namespace, name, _ := strings.Cut(plan.Pod, "/")
	node := ""
	var last error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		pod, err := c.Pod(ctx, namespace, name)
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			return false, err
		}
		if last = err; err != nil {
			return false, nil // the move is under way: the API server may answer the next time
		}
		node = pod.Spec.NodeName
		return node != "", nil
	})
	if err != nil {
		if ended := ctx.Err(); ended != nil && last != nil && !errors.Is(last, ended) {
			err = fmt.Errorf("%w: %w", err, last)
		}
		return fmt.Errorf("pod %s is not placed yet: %w: see kubectl gpuslice explain %s", plan.Pod, err, plan.Pod)
	}
	how.Report("pod %s is placed on node %s", plan.Pod, node)
	return nil
}

// move evicts the plan's pods. The pods that replace them come while they still hold their GPUs, so until they are gone
// those of the pending pod are cordoned.
func (c *Cluster) move(ctx context.Context, plan defrag.Plan, how Evictions) (err error) {
	var moved []Holder
	for _, m := range plan.Moves {
		namespace, name, _ := strings.Cut(m.Pod, "/")
		moved = append(moved, Holder{Namespace: namespace, Name: name, UID: m.UID})
	}
	if len(plan.GPUs) > 0 {
		own := newMark(ctx, plan.Pod)
		defer sayAtEnd(ctx, &how, "GPU %s of node %s is uncordoned, then defrag ends: another signal would keep it cordoned",
			strings.Join(plan.GPUs, ", "), plan.Node)()
		// Also if hold fails: the API server can have done it.
		defer func() { err = errors.Join(err, c.uncordon(ctx, plan, own)) }()
		if err := c.hold(ctx, plan.Node, plan.GPUs, own); err != nil {
			return err
		}
		c.waitSeen(ctx, plan.Node, plan.GPUs, true, how.Report)
	}
	return c.Evict(ctx, moved, how)
}

// seenTimeout limits the wait for schedulers that do not answer.
const seenTimeout = 15 * time.Second

// waitSeen waits until all schedulers show the GPUs as cordoned, or not. Events of nodes and of pods reach a scheduler separately: one
// that has not read the cordon could give the room to a pod that replaces an evicted one. After seenTimeout it reports those that
// are late.
func (c *Cluster) waitSeen(ctx context.Context, node string, uuids []string, cordoned bool, report func(format string, args ...any)) {
	limited, cancel := context.WithTimeout(ctx, seenTimeout)
	defer cancel()
	var late error
	err := wait.PollUntilContextCancel(limited, pollInterval, true, func(ctx context.Context) (bool, error) {
		late = c.seen(ctx, node, uuids, cordoned)
		return late == nil, nil
	})
	if err != nil && ctx.Err() == nil {
		report("after %v not all schedulers have read the cordons of node %s, and may still place pods by the earlier ones: %v", seenTimeout, node, late)
	}
}

// seen returns the schedulers that do not show the GPUs as cordoned or not, as an error.
func (c *Cluster) seen(ctx context.Context, node string, uuids []string, cordoned bool) error {
	servers, _, err := c.servers(ctx, componentScheduler)
	if err != nil {
		return err
	}
	var late []error
	for i := range servers {
		var state engine.State
		err := c.request(ctx, &servers[i], portHTTP, "/debug/state", map[string]string{"node": node, "format": "json"}, &state)
		if err == nil {
			err = shows(state, node, uuids, cordoned)
		}
		if err != nil {
			late = append(late, fmt.Errorf("scheduler %s/%s: %w", servers[i].Namespace, servers[i].Name, err))
		}
	}
	return errors.Join(late...)
}

func shows(state engine.State, node string, uuids []string, cordoned bool) error {
	is := map[string]bool{}
	for _, n := range state.Nodes {
		for _, gpu := range n.GPUs {
			if n.Name == node {
				is[gpu.UUID] = gpu.Cordoned
			}
		}
	}
	for _, uuid := range uuids {
		if now, known := is[uuid]; known && now != cordoned || cordoned && !known {
			return fmt.Errorf("GPU %s is not shown as %s", uuid, map[bool]string{true: "cordoned", false: "uncordoned"}[cordoned])
		}
	}
	return nil
}

// sayAtEnd reports a text when ctx ends, until the returned function is called.
func sayAtEnd(ctx context.Context, how *Evictions, format string, args ...any) (stop func()) {
	var one sync.Mutex
	report, said := how.Report, make(chan struct{})
	how.Report = func(format string, args ...any) {
		one.Lock()
		defer one.Unlock()
		report(format, args...)
	}
	serial := how.Report
	cancel := context.AfterFunc(ctx, func() {
		defer close(said)
		serial(format, args...)
	})
	return func() {
		if !cancel() {
			<-said
		}
	}
}

// afterDeadline is more than a call needs to end after its deadline.
const afterDeadline = time.Minute

func newMark(ctx context.Context, pod string) mark {
	deadline, limited := ctx.Deadline()
	if !limited {
		deadline = time.Now().Add(time.Hour)
	}
	return mark{Pod: pod, ID: rand.Text(), Until: deadline.Add(afterDeadline).UTC().Truncate(time.Second)}
}

// Clear removes the cordons that earlier calls have left: those for this pod, and those after their deadline. With keep it only
// reports them.
func (c *Cluster) Clear(ctx context.Context, namespace, name string, keep bool, report func(format string, args ...any)) error {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if apierrors.IsForbidden(err) {
		return nil // a plan needs no right to nodes
	}
	if err != nil {
		return fmt.Errorf("list the cluster's nodes: %w", err)
	}
	match := func(by mark) bool { return by.Pod == namespace+"/"+name || by.left() }
	for i := range nodes.Items {
		node, marks := nodes.Items[i].Name, cordonsOf(&nodes.Items[i]).marks
		maps.DeleteFunc(marks, func(_ string, by mark) bool { return !match(by) })
		if len(marks) == 0 {
			continue
		}
		var err error
		var removed []string
		if !keep {
			removed, err = c.release(ctx, node, match)
		}
		switch {
		case keep || apierrors.IsForbidden(err): // a plan, and resizes, need no right to change nodes
			for _, uuid := range slices.Sorted(maps.Keys(marks)) {
				report("GPU %s of node %s is still cordoned by an earlier defrag of pod %s: kubectl gpuslice uncordon %s %s, or defrag without --plan as an operator",
					uuid, node, marks[uuid].Pod, node, uuid)
			}
			continue
		case err != nil:
			return err
		}
		for _, uuid := range removed {
			report("GPU %s of node %s is uncordoned: an earlier defrag had cordoned it", uuid, node)
		}
		c.waitSeen(ctx, node, removed, false, report)
	}
	return nil
}

// uncordon also works after ctx has ended. It keeps the cordons of operators, and of other calls.
func (c *Cluster) uncordon(ctx context.Context, plan defrag.Plan, own mark) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tryTimeout)
	defer cancel()
	var last error
	if err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		_, last = c.release(ctx, plan.Node, func(by mark) bool { return by.ID == own.ID })
		if apierrors.IsForbidden(last) {
			return false, last
		}
		return last == nil || apierrors.IsNotFound(last), nil
	}); err == nil {
		return nil
	}
	var commands []string
	for _, uuid := range plan.GPUs {
		commands = append(commands, fmt.Sprintf("kubectl gpuslice uncordon %s %s", plan.Node, uuid))
	}
	return fmt.Errorf("the GPUs may be cordoned still: run %s: %w", strings.Join(commands, "; "), last)
}

func (c *Cluster) shrink(ctx context.Context, r defrag.Resize) error {
	namespace, name, _ := strings.Cut(r.Pod, "/")
	pod, err := c.Pod(ctx, namespace, name)
	if err != nil {
		return err
	}
	if string(pod.UID) != r.UID {
		return fmt.Errorf("pod %s was created again since the plan: plan again", r.Pod)
	}
	wanted := map[string]grant.Wanted{}
	for container, mib := range r.MemoryMiB {
		wanted[container] = grant.Wanted{MemoryMiB: &mib}
	}
	_, err = c.Resize(ctx, pod, wanted)
	return err
}

// Steps describes a plan, a line each.
func Steps(plan defrag.Plan) (lines []string) {
	for _, r := range plan.Resizes {
		var parts []string
		for container, mib := range r.MemoryMiB {
			parts = append(parts, fmt.Sprintf("%s to %d MiB", container, mib))
		}
		slices.Sort(parts)
		lines = append(lines, fmt.Sprintf("resize pod %s: %s", r.Pod, strings.Join(parts, ", ")))
	}
	if len(plan.GPUs) > 0 {
		lines = append(lines, fmt.Sprintf("cordon GPU %s of node %s until the pods are gone", strings.Join(plan.GPUs, ", "), plan.Node))
	}
	for _, m := range plan.Moves {
		lines = append(lines, fmt.Sprintf("evict pod %s from node %s: it fits on node %s then", m.Pod, m.From, m.To))
	}
	return append(lines, fmt.Sprintf("then pod %s fits on node %s", plan.Pod, plan.Node))
}
