package room

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/quota"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// cluster has nodes with GPUs of 80000 MiB, and pods on them.
type cluster struct {
	t      testing.TB
	engine *engine.Engine
	free   map[string]Host
	units  map[string]*Unit
	order  []string
}

func newCluster(t testing.TB, gpus ...int) *cluster {
	e, err := engine.New(engine.Options{Request: request.DefaultOptions()})
	require.NoError(t, err)
	c := &cluster{t: t, engine: e, free: map[string]Host{}, units: map[string]*Unit{}}
	for i, n := range gpus {
		var list []map[string]any
		for j := range n {
			list = append(list, map[string]any{"uuid": fmt.Sprintf("GPU-%08x-0000-0000-0000-%012x", i, j), "model": "NVIDIA H100 80GB HBM3",
				"index": j, "memoryMiB": 80000, "cores": 100, "replicas": 10, "mode": "hami-core", "healthy": true})
		}
		text, err := json.Marshal(map[string]any{"version": 1, "gpus": list})
		require.NoError(t, err)
		name := fmt.Sprint("n", i)
		e.SetNode(&scheduler.Node{Name: name, Annotations: map[string]string{api.AnnotationNodeGPUs: string(text)}})
		c.free[name] = Host{1000, 1 << 30, 0, 100}
	}
	return c
}

// pod requests one GPU, in namespace ns.
func pod(name string, priority int32, mib int64) *scheduler.Pod {
	return &scheduler.Pod{UID: name, Namespace: "ns", Name: name, Priority: priority, Annotations: map[string]string{},
		Containers: []scheduler.Container{{Name: "main", Resources: map[string]scheduler.Amount{
			"nvidia.com/gpu": {Value: 1}, "nvidia.com/gpumem": {Value: mib}}}}}
}

// run binds the pod to the node; it is false if it does not fit. Pods of the same group are one unit.
func (c *cluster) run(p *scheduler.Pod, node, group string) bool {
	r, err := c.engine.Request(p)
	require.NoError(c.t, err)
	placement, err := c.engine.Reserve(p, r, node, "test")
	if err != nil {
		return false
	}
	annotations, err := wire.Annotations(p, placement, nil, time.Unix(1_800_000_000, 0))
	require.NoError(c.t, err)
	bound := *p
	bound.Node, bound.Annotations, bound.Group = node, annotations, group
	c.engine.SetPod(&bound)
	host := Host{10, 0, 0, 1}
	c.free[node] = c.free[node].Sub(host)
	key := group
	if key == "" {
		key = p.UID
	}
	u := c.units[key]
	if u == nil {
		u = &Unit{Group: group, Priority: p.Priority}
		c.units[key] = u
		c.order = append(c.order, key)
	}
	u.Priority = max(u.Priority, p.Priority)
	u.Victims = append(u.Victims, Victim{engine.Victim{UID: p.UID, Namespace: p.Namespace, Name: p.Name, Node: node}, host})
	return true
}

// input is for members of that priority.
func (c *cluster) input(priority int32, members ...*scheduler.Pod) Input {
	s := c.engine.Snapshot()
	in := Input{Engine: c.engine, Snapshot: s, State: State{s.Overlay(), c.free}}
	for _, key := range c.order {
		if u := c.units[key]; u.Priority < priority {
			in.Units = append(in.Units, *u)
		}
	}
	for _, m := range members {
		in.Members = append(in.Members, Member{m, Host{10, 0, 0, 1}, func(string) bool { return true }})
	}
	return in
}

func group(n int, priority int32, mib int64) (pods []*scheduler.Pod) {
	for i := range n {
		pods = append(pods, pod(fmt.Sprint("g-", i), priority, mib))
	}
	return pods
}

func names(p Plan) (all []string) {
	for _, u := range p.Evict {
		for _, v := range u.Victims {
			all = append(all, v.Name)
		}
	}
	slices.Sort(all)
	return all
}

func TestFind(t *testing.T) {
	for _, tc := range []struct {
		name  string
		gpus  []int
		set   func(c *cluster)
		in    func(in *Input)
		count int
		want  []string
		err   error
	}{
		{name: "no eviction is needed", gpus: []int{2, 1}, count: 3},
		{name: "as few as needed, on two nodes", gpus: []int{2, 2}, count: 3, want: []string{"a", "c"},
			set: func(c *cluster) {
				c.run(pod("a", 0, 60000), "n0", "")
				c.run(pod("b", 1, 60000), "n0", "")
				c.run(pod("c", 0, 60000), "n1", "")
			}},
		{name: "not all fit: none is evicted", gpus: []int{2}, count: 3, err: ErrNone,
			set: func(c *cluster) { c.run(pod("a", 0, 60000), "n0", "") }},
		{name: "equal priority is not evicted", gpus: []int{1}, count: 1, err: ErrNone,
			set: func(c *cluster) { c.run(pod("a", 5, 60000), "n0", "") }},
		{name: "a group is evicted whole", gpus: []int{1, 1}, count: 1, want: []string{"a", "b"},
			set: func(c *cluster) {
				c.run(pod("a", 0, 60000), "n0", "x")
				c.run(pod("b", 0, 60000), "n1", "x")
			}},
		{name: "a single pod before a group of the same priority", gpus: []int{1, 1, 1}, count: 1, want: []string{"c"},
			set: func(c *cluster) {
				c.run(pod("a", 0, 60000), "n0", "x")
				c.run(pod("b", 0, 60000), "n1", "x")
				c.run(pod("c", 0, 60000), "n2", "")
			}},
		{name: "a higher priority before a violated budget", gpus: []int{1, 1}, count: 1, want: []string{"b"},
			set: func(c *cluster) {
				c.run(pod("a", 0, 60000), "n0", "")
				c.run(pod("b", 4, 60000), "n1", "")
				c.units["a"].Protected = true
			}},
		{name: "a budget is violated if there is no other way", gpus: []int{1}, count: 1, want: []string{"a"},
			set: func(c *cluster) {
				c.run(pod("a", 0, 60000), "n0", "")
				c.units["a"].Protected = true
			}},
		{name: "CPU counts", gpus: []int{1, 1}, count: 1, want: []string{"b"},
			set: func(c *cluster) {
				c.run(pod("a", 0, 60000), "n0", "")
				c.run(pod("b", 1, 60000), "n1", "")
				c.free["n0"] = Host{-5, 0, 0, 100}
			}},
		{name: "a node that the members may not use", gpus: []int{1, 1}, count: 1, want: []string{"b"},
			set: func(c *cluster) {
				c.run(pod("a", 0, 60000), "n0", "")
				c.run(pod("b", 1, 60000), "n1", "")
			},
			in: func(in *Input) { in.Members[0].Allowed = func(node string) bool { return node == "n1" } }},
		{name: "one domain has all", gpus: []int{1, 1, 1, 1}, count: 2, want: []string{"b"},
			set: func(c *cluster) {
				c.run(pod("a", 0, 60000), "n0", "")
				c.run(pod("aa", 0, 60000), "n1", "")
				c.run(pod("b", 0, 60000), "n2", "")
			},
			in: func(in *Input) { in.Domains = [][]string{{"n0", "n1"}, {"n2", "n3"}} }},
		{name: "a quota that a pod on another node uses up", gpus: []int{1, 1}, count: 1, want: []string{"a"},
			set: func(c *cluster) {
				c.run(pod("a", 0, 60000), "n0", "")
				c.engine.SetQuota("ns", "q", quota.Quota{Limits: quota.Limits{MemoryMiB: 60000, Cores: quota.Unlimited}})
			}},
		{name: "a quota that the group itself exceeds", gpus: []int{1, 1}, count: 2, err: ErrNone,
			set: func(c *cluster) {
				c.engine.SetQuota("ns", "q", quota.Quota{Limits: quota.Limits{MemoryMiB: 90000, Cores: quota.Unlimited}})
			}},
		{name: "too many members", gpus: []int{1}, count: MaxMembers + 1, err: ErrBound},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t, tc.gpus...)
			if tc.set != nil {
				tc.set(c)
			}
			in := c.input(5, group(tc.count, 5, 60000)...)
			if tc.in != nil {
				tc.in(&in)
			}
			plan, err := Find(in)
			if tc.err != nil {
				require.ErrorIs(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, names(plan))
			require.Len(t, plan.Nodes, tc.count)
		})
	}
}

// The search of a cluster that is too large for it ends with an error, not late.
func TestFindIsBounded(t *testing.T) {
	gpus := make([]int, 600)
	for i := range gpus {
		gpus[i] = 1
	}
	c := newCluster(t, gpus...)
	for i := range gpus {
		c.run(pod(fmt.Sprint("low-", i), int32(i%4), 60000), fmt.Sprint("n", i), "")
	}
	plan, err := Find(c.input(5, group(8, 5, 60000)...))
	require.NoError(t, err)
	require.Len(t, plan.Evict, 8)
	for _, u := range plan.Evict {
		require.Zero(t, u.Priority)
	}
	// Each member has a request of its own.
	members := group(MaxMembers, 5, 60000)
	for i, m := range members {
		m.Containers[0].Resources["nvidia.com/gpumem"] = scheduler.Amount{Value: int64(60000 + i)}
	}
	in := c.input(5, members...)
	s := &search{Input: in, steps: maxSteps}
	require.NoError(t, s.evaluate())
	s.within(in.Snapshot.Nodes())
	require.Greater(t, s.steps, -maxSteps/10, "it stops where the steps end")
}

// random is a cluster with pods of priorities 0 to 3, some in groups.
func random(t *testing.T, r *rand.Rand) *cluster {
	gpus := make([]int, 1+r.IntN(3))
	for i := range gpus {
		gpus[i] = 1 + r.IntN(3)
	}
	c := newCluster(t, gpus...)
	for i := range 3 + r.IntN(7) {
		in := ""
		if r.IntN(3) == 0 {
			in = fmt.Sprint("x", r.IntN(2))
		}
		c.run(pod(fmt.Sprint("p", i), int32(r.IntN(4)), int64(10000*(1+r.IntN(8)))), fmt.Sprint("n", r.IntN(len(gpus))), in)
	}
	for _, u := range c.units {
		u.Protected = r.IntN(6) == 0
	}
	return c
}

func TestFindRandom(t *testing.T) {
	found, none := 0, 0
	for seed := range uint64(1500) {
		r := rand.New(rand.NewPCG(seed, 17))
		c := random(t, r)
		priority := int32(1 + r.IntN(3))
		var members []*scheduler.Pod
		for i := range 1 + r.IntN(4) {
			members = append(members, pod(fmt.Sprint("g-", i), priority, int64(10000*(1+r.IntN(8)))))
		}
		in := c.input(priority, members...)
		plan, err := Find(in)
		if err != nil {
			require.ErrorIs(t, err, ErrNone, "seed %d", seed)
			none++
			everything := in
			everything.State = in.State.Without(Victims(in.Units)...)
			require.False(t, placeable(everything, everything.State, members), "seed %d: all evictions make room", seed)
			continue
		}
		found++
		require.True(t, possible(in, plan), "seed %d", seed)
		for _, u := range plan.Evict {
			require.Less(t, u.Priority, priority, "seed %d", seed)
			require.Equal(t, c.units[key(u)].Victims, u.Victims, "seed %d: a unit is whole", seed)
		}
		for i := range plan.Evict {
			fewer := in
			fewer.Units = slices.Delete(slices.Clone(plan.Evict), i, i+1)
			_, err := Find(fewer)
			require.True(t, errors.Is(err, ErrNone), "seed %d: %v need not be evicted", seed, plan.Evict[i])
		}
		// No plan without violations, or with a lower highest priority, exists.
		top := plan.Evict
		slices.SortFunc(top, func(a, b Unit) int { return important(&b, &a) })
		if len(top) > 0 {
			lesser := in
			lesser.Units = slices.DeleteFunc(slices.Clone(in.Units), func(u Unit) bool { return important(&u, &top[0]) >= 0 })
			_, err := Find(lesser)
			require.ErrorIs(t, err, ErrNone, "seed %d", seed)
		}
		// Reality: the victims end, and the members are placed.
		for _, u := range plan.Evict {
			for _, v := range u.Victims {
				c.engine.DeletePod(v.UID)
			}
		}
		s := &search{Input: in}
		require.NoError(t, s.evaluate())
		for _, m := range s.members {
			_, err := c.engine.Reserve(m.Pod, m.request, plan.Nodes[m.Pod.UID], "test")
			require.NoError(t, err, "seed %d: %v", seed, plan)
		}
	}
	require.Greater(t, found, 500)
	require.Greater(t, none, 100)
}

func key(u Unit) string {
	if u.Group != "" {
		return u.Group
	}
	return u.Victims[0].UID
}

// possible: the members fit where the plan has them.
func possible(in Input, p Plan) bool {
	hold, err := NewHold(in.Engine, in.Snapshot, in.Members, p.Nodes)
	if err != nil {
		return false
	}
	_, ok := hold.Keep(in.State.Without(Victims(p.Evict)...))
	return ok
}

// placeable is place in the plainest way.
func placeable(in Input, state State, members []*scheduler.Pod) bool {
	members = slices.Clone(members)
	slices.SortStableFunc(members, func(a, b *scheduler.Pod) int {
		memory := func(p *scheduler.Pod) int64 { return p.Containers[0].Resources["nvidia.com/gpumem"].Value }
		return int(memory(b) - memory(a))
	})
	gpus := state.GPUs
	for _, m := range members {
		r, err := in.Engine.Request(m)
		if err != nil {
			return false
		}
		v := in.Engine.Evaluate(in.Snapshot, m, r)
		node := v.BestOn(gpus, slices.Sorted(maps.Keys(state.Host)))
		if node == "" {
			return false
		}
		if gpus, _ = v.Put(gpus, node, r); gpus == nil {
			return false
		}
	}
	return true
}
