package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// ErrResize: Resize refuses the wanted amounts.
var ErrResize = errors.New("can't be resized")

func refuseResize(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrResize, fmt.Sprintf(format, args...))
}

// Resize changes a bound pod's amounts. Until SetPod confirms them or CancelResize is called, the pod is
// charged the higher of old and new. An increase has to be free and within the quotas. 0 cores are unlimited:
// the highest amount, though they reserve none.
func (e *Engine) Resize(object *scheduler.Pod, wanted map[string]grant.Wanted) (scheduler.Placement, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.expire()
	p := e.pods[object.UID]
	if p == nil || !p.bound() {
		return scheduler.Placement{}, refuseResize("the pod has no GPUs granted by this scheduler")
	}
	if p.problem != "" {
		return scheduler.Placement{}, refuseResize("%s", p.problem)
	}
	next, err := p.resizedPlacement(object, wanted)
	if err != nil {
		return scheduler.Placement{}, err
	}
	n := e.newest.Load().node(next.Node)
	if n == nil {
		return scheduler.Placement{}, refuseResize("unknown node %s", next.Node)
	}
	both := newAllocation(object, maxPlacement(p.granted, next))
	if err := e.admitResize(n.without(object.UID), newAllocation(object, p.granted), newAllocation(object, next)); err != nil {
		return scheduler.Placement{}, err
	}
	e.allocate(p, both)
	return next, nil
}

// CancelResize restores the amounts in the pod's annotations.
func (e *Engine) CancelResize(object *scheduler.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.pods[object.UID]; p != nil && p.bound() {
		e.reallocate(p, newAllocation(object, p.granted))
	}
}

func (e *Engine) reallocate(p *pod, h *allocation) {
	if !p.allocation.sameAs(h) {
		e.allocate(p, h)
		e.stats.resized.Add(1)
	}
}

// Resized counts changed allocations of bound pods. No Kubernetes event makes schedulers retry pods then.
func (e *Engine) Resized() uint64 { return e.stats.resized.Load() }

// PendingUnreserved returns up to most pods without a reservation, oldest first.
func (e *Engine) PendingUnreserved(most int) (pods []*scheduler.Pod) {
	for _, p := range e.pendingPods() {
		if len(pods) == most {
			break
		}
		if e.AllocatedNode(p.UID) == "" {
			pods = append(pods, p)
		}
	}
	return pods
}

func (p *pod) resized(next *scheduler.Placement) bool {
	return next != nil && next.Generation > p.granted.Generation && next.Node == p.granted.Node &&
		slices.EqualFunc(next.Containers, p.granted.Containers, func(a, b []grant.Share) bool {
			return slices.EqualFunc(a, b, func(a, b grant.Share) bool { return a.UUID == b.UUID })
		})
}

func (p *pod) resizedPlacement(object *scheduler.Pod, wanted map[string]grant.Wanted) (scheduler.Placement, error) {
	isolation, err := grant.RequestedIsolation(object.Annotations)
	if err != nil {
		return p.granted, refuseResize("%v", err)
	}
	next := p.granted
	next.Generation++
	next.Containers = slices.Clone(next.Containers)
	for _, name := range grant.Containers(wanted) {
		i := slices.IndexFunc(object.Containers, func(c scheduler.Container) bool { return c.Name == name })
		if i < 0 || i >= len(next.Containers) || len(next.Containers[i]) == 0 {
			return next, refuseResize("container %q has no GPUs; containers with GPUs: %s", name, containersWithGPUs(object, next))
		}
		shares, err := wanted[name].Of(next.Containers[i])
		if err == nil {
			err = grant.ValidateShares(shares)
		}
		if err != nil {
			return next, refuseResize("container %q: %v", name, err)
		}
		for j, s := range shares {
			if grant.IsMIG(s.UUID) && s != next.Containers[i][j] {
				return next, refuseResize("container %q: %s is a MIG device, which can't be resized", name, s.UUID)
			}
			if isolation == grant.IsolationHardware && s.MemoryMiB < next.Containers[i][j].MemoryMiB {
				return next, refuseResize("container %q: the pod requests the isolation hardware (annotation %s): its GPUs stay whole", name, api.AnnotationIsolation)
			}
		}
		next.Containers[i] = shares
	}
	return next, nil
}

func containersWithGPUs(object *scheduler.Pod, p scheduler.Placement) string {
	var names []string
	for i, shares := range p.Containers {
		if len(shares) > 0 && i < len(object.Containers) {
			names = append(names, object.Containers[i].Name)
		}
	}
	return strings.Join(names, ", ")
}

// admitResize expects n without the pod.
func (e *Engine) admitResize(n *node, old, next *allocation) error {
	had := make(map[string]scheduler.Use, len(old.byUUID))
	for _, u := range old.byUUID {
		had[u.uuid] = u.use
	}
	for _, u := range next.byUUID {
		before, gain := had[u.uuid], coreGains(old, next, u.uuid)
		if u.use.MemoryMiB <= before.MemoryMiB && u.use.Cores <= before.Cores && !gain.unlimited && !gain.whole {
			continue
		}
		i, ok := n.gpus.position[u.uuid]
		if !ok {
			return refuseResize("GPU %s is not registered by node %s: it can't be increased", u.uuid, n.name)
		}
		if gpu := &n.gpus.inventory.GPUs[i]; !gpu.Healthy {
			return refuseResize("GPU %s is not healthy: it can't be increased", u.uuid)
		}
		total, others := n.gpus.total[i], n.used[i]
		free := total.Sub(others)
		whole := request.Container{Cores: grant.MaxCorePercent}
		switch {
		case u.use.MemoryMiB > before.MemoryMiB && u.use.MemoryMiB > free.MemoryMiB:
			return refuseResize("GPU %s of node %s: the pod would need %d MiB, but only %d of %d MiB are free for it", u.uuid,
				n.name, u.use.MemoryMiB, max(0, free.MemoryMiB), total.MemoryMiB)
		case u.use.Cores > before.Cores && u.use.Cores > free.Cores:
			return refuseResize("GPU %s of node %s: the pod would need %d percent of cores, but only %d of %d are free for it",
				u.uuid, n.name, u.use.Cores, max(0, free.Cores), total.Cores)
		case gain.whole && whole.Exclusive(total.Cores) && (others.Replicas > 0 || u.use.Replicas > 1):
			return refuseResize("GPU %s of node %s: all cores require exclusive use, but other containers use the GPU", u.uuid, n.name)
		case gain.unlimited && total.Cores > 0 && others.Cores+gain.running >= total.Cores:
			return refuseResize("GPU %s of node %s: unlimited cores (0) need free cores, but all %d are reserved", u.uuid, n.name, total.Cores)
		}
	}
	return e.checkQuotas(n, old, next)
}

// coreGain is a change of cores that the sums don't show.
type coreGain struct {
	unlimited bool // from a limit to none
	whole     bool // to all cores
	running   int  // cores that run together
}

func coreGains(old, next *allocation, uuid string) (g coreGain) {
	for i, shares := range next.placement.Containers {
		for j, s := range shares {
			if s.UUID != uuid {
				continue
			}
			if next.kinds[i] != scheduler.Init {
				g.running += s.CorePercent
			}
			had := old.placement.Containers[i][j].CorePercent
			g.unlimited = g.unlimited || s.CorePercent == 0 && had > 0
			g.whole = g.whole || s.CorePercent == grant.MaxCorePercent && had != s.CorePercent
		}
	}
	return g
}

func (e *Engine) checkQuotas(n *node, old, next *allocation) error {
	account := e.quotas.Account(next.namespace)
	before, now := quotaCharge(old, n), quotaCharge(next, n)
	if !account.Limited() || now.MemoryMiB <= before.MemoryMiB && now.Cores <= before.Cores && now.GPUPercent <= before.GPUPercent {
		return nil
	}
	if _, h := e.current(next.uid); h != nil {
		account = account.Minus(h.charge)
	}
	// A decrease is never refused, even if a quota was lowered.
	if now.MemoryMiB <= before.MemoryMiB {
		now.MemoryMiB = 0
	}
	if now.Cores <= before.Cores {
		now.Cores = 0
	}
	err := account.Check(now)
	if err == nil && now.GPUPercent > before.GPUPercent {
		err = account.CheckNode(n.labels, now)
	}
	if err != nil {
		return refuseResize("%v", err)
	}
	return nil
}

func maxPlacement(a, b scheduler.Placement) scheduler.Placement {
	both := a
	both.Containers = make([][]grant.Share, len(a.Containers))
	for i := range a.Containers {
		both.Containers[i] = slices.Clone(a.Containers[i])
		for j := range both.Containers[i] {
			s := &both.Containers[i][j]
			s.MemoryMiB = max(s.MemoryMiB, b.Containers[i][j].MemoryMiB)
			s.CorePercent = max(s.CorePercent, b.Containers[i][j].CorePercent)
		}
	}
	return both
}
