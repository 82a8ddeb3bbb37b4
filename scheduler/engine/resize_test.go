package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/quota"
	"github.com/gpuslice/gpuslice/scheduler/request"
	"github.com/gpuslice/gpuslice/scheduler/wire"
	"github.com/gpuslice/gpuslice/test/granttest"
)

// to is a request for memory and cores; below 0: as it is.
func to(mib int64, cores int) grant.Wanted {
	var w grant.Wanted
	if mib >= 0 {
		w.MemoryMiB = &mib
	}
	if cores >= 0 {
		w.Cores = &cores
	}
	return w
}

func container0(w grant.Wanted) map[string]grant.Wanted { return map[string]grant.Wanted{"c0": w} }

// rewritten is the bound pod with the annotations of what it has now.
func rewritten(t tester, p *scheduler.Pod, placement scheduler.Placement, key *grant.SigningKey) *scheduler.Pod {
	t.Helper()
	more, err := wire.Resized(p, placement, key, time.Unix(1_800_000_000, 0))
	if err != nil {
		t.Fatalf("annotations: %v", err)
	}
	return annotated(p, more)
}

// usedOf0 is what is reserved of GPU 0 of node "a".
func usedOf0(e *Engine) (u scheduler.Use) {
	e.Snapshot().GPUs(func(_ string, c *scheduler.GPU, use scheduler.Use) {
		if c.Index == 0 {
			u = use
		}
	})
	return u
}

func TestResizeIsReserved(t *testing.T) {
	e := newEngine(t, Options{})
	e.SetNode(nodeOf("a", h100(0, 0)))
	pod := place(t, e, podOf("u", "1/8000/30"), "a")
	e.SetPod(pod)

	next, err := e.Resize(pod, container0(to(20000, 10)))
	require.NoError(t, err)
	assert.Equal(t, []grant.Share{{UUID: uuid(0, 0), MemoryMiB: 20000, CorePercent: 10}}, next.Containers[0])
	assert.Equal(t, int64(1), next.Generation)
	assert.Equal(t, scheduler.Use{MemoryMiB: 20000, Cores: 30, Replicas: 1}, usedOf0(e), "the higher of both, until it is written")
	e.SetPod(pod)
	assert.Equal(t, scheduler.Use{MemoryMiB: 20000, Cores: 30, Replicas: 1}, usedOf0(e), "another event of the pod changes nothing")

	pod = rewritten(t, pod, next, nil)
	e.SetPod(pod)
	assert.Equal(t, scheduler.Use{MemoryMiB: 20000, Cores: 10, Replicas: 1}, usedOf0(e))
	assert.Empty(t, e.Problems())

	_, err = e.Resize(pod, container0(to(90000, -1)))
	require.ErrorIs(t, err, ErrResize)
	assert.ErrorContains(t, err, "the pod would need 90000 MiB, but only 80000 of 80000 MiB are free for it")
	_, err = e.Resize(pod, container0(to(30000, -1)))
	require.NoError(t, err)
	e.CancelResize(pod)
	assert.Equal(t, scheduler.Use{MemoryMiB: 20000, Cores: 10, Replicas: 1}, usedOf0(e))
	e.DeletePod("u")
	assert.Zero(t, usedOf0(e))
}

func TestResizeIsRefused(t *testing.T) {
	for _, test := range []struct {
		name   string
		wanted map[string]grant.Wanted
		before func(e *Engine)
		fails  string // empty: it is not refused
	}{
		{"memory that others have", container0(to(40001, -1)), nil, "only 40000 of 80000 MiB are free for it"},
		{"all memory that others leave", container0(to(40000, -1)), nil, ""},
		{"cores that others have", container0(to(-1, 51)), nil, "only 50 of 100 are free for it"},
		{"no limit of cores", container0(to(-1, 0)), nil, ""},
		{"no limit of cores of a GPU that is ill", container0(to(-1, 0)), func(e *Engine) {
			ill := h100(0, 0)
			ill.Healthy = false
			e.SetNode(nodeOf("a", ill))
		}, "not healthy"},
		{"no limit of cores of a GPU that is gone", container0(to(7000, 0)), func(e *Engine) { e.DeleteNode("a") }, "is not registered"},
		{"no limit of cores where others have all that there are now", container0(to(-1, 0)), func(e *Engine) { e.SetNode(nodeOf("a", withCores(50))) },
			"all 50 are reserved"},
		{"no limit of cores where others leave one", container0(to(-1, 0)), func(e *Engine) { e.SetNode(nodeOf("a", withCores(51))) }, ""},
		{"another container", map[string]grant.Wanted{"c9": to(1, 1)}, nil, `container "c9" has no GPUs; containers with GPUs: c0`},
		{"one without GPUs", map[string]grant.Wanted{"c1": to(1, 1)}, nil, `container "c1" has no GPUs`},
		{"another GPU", container0(grant.Wanted{Cores: to(-1, 1).Cores, GPU: uuid(0, 1)}), nil, "no share of GPU"},
		{"a GPU that is ill", container0(to(9000, -1)), func(e *Engine) {
			ill := h100(0, 0)
			ill.Healthy = false
			e.SetNode(nodeOf("a", ill))
		}, "not healthy"},
		{"less of a GPU that is ill", container0(to(7000, -1)), func(e *Engine) {
			ill := h100(0, 0)
			ill.Healthy = false
			e.SetNode(nodeOf("a", ill))
		}, ""},
		{"more of a GPU that is gone", container0(to(9000, -1)), func(e *Engine) { e.DeleteNode("a") }, "is not registered"},
		{"a cordoned GPU", container0(to(9000, -1)), func(e *Engine) {
			cordoned := h100(0, 0)
			cordoned.Cordoned = true
			e.SetNode(nodeOf("a", cordoned))
		}, ""},
		{"beyond the quota", container0(to(9001, -1)), func(e *Engine) {
			e.SetQuota("ns", "q", quota.Quota{Limits: quota.Limits{MemoryMiB: 49000, Cores: quota.Unlimited}})
		}, "quota of namespace ns: memory in MiB: 9001 requested, 40000 of 49000 used"},
		{"up to the quota", container0(to(9000, -1)), func(e *Engine) {
			e.SetQuota("ns", "q", quota.Quota{Limits: quota.Limits{MemoryMiB: 49000, Cores: quota.Unlimited}})
		}, ""},
		{"less, of a quota that was lowered", container0(to(7000, 40)), func(e *Engine) {
			e.SetQuota("ns", "q", quota.Quota{Limits: quota.Limits{MemoryMiB: 1000, Cores: quota.Unlimited}})
		}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEngine(t, Options{})
			e.SetNode(nodeOf("a", h100(0, 0)))
			pod := place(t, e, podOf("u", "1/8000/30", "0/0/0"), "a")
			e.SetPod(pod)
			e.SetPod(place(t, e, podOf("other", "1/40000/50"), "a"))
			if test.before != nil {
				test.before(e)
			}
			was := usedOf0(e)
			_, err := e.Resize(pod, test.wanted)
			if test.fails == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrResize)
			assert.ErrorContains(t, err, test.fails)
			assert.Equal(t, was, usedOf0(e))
		})
	}
	e := newEngine(t, Options{})
	_, err := e.Resize(podOf("unknown", "1/8000/30"), container0(to(1, 1)))
	require.ErrorIs(t, err, ErrResize)
}

func withCores(cores int) scheduler.GPU {
	gpu := h100(0, 0)
	gpu.Cores = cores
	return gpu
}

// Cores follow a new pod's rules: 100 are exclusive, 0 are unlimited, and both are counted by container.
func TestResizeOfCores(t *testing.T) {
	of := func(name string, cores int) map[string]grant.Wanted {
		return map[string]grant.Wanted{name: to(-1, cores)}
	}
	for _, test := range []struct {
		name   string
		pod    []string // its containers
		other  string   // another pod's on the GPU; empty: there is none
		cores  int      // of the GPU
		wanted map[string]grant.Wanted
		fails  string // empty: it is not refused
	}{
		{"all of exclusive use", []string{"1/8000/30"}, "", 100, of("c0", 100), ""},
		{"all beside one without a limit", []string{"1/8000/30"}, "1/8000/0", 100, of("c0", 100), "exclusive use"},
		{"all in place of no limit, beside another", []string{"1/8000/0"}, "1/8000/0", 100, of("c0", 100), "exclusive use"},
		{"all beside the pod's own", []string{"1/8000/30", "1/8000/0"}, "", 100, of("c0", 100), "exclusive use"},
		{"a hundred of more", []string{"1/8000/30"}, "1/8000/100", 200, of("c0", 100), ""},
		{"halves of two containers, beside another", []string{"1/8000/50", "1/8000/30"}, "1/8000/0", 100, of("c1", 50), ""},
		{"no limit in place of all", []string{"1/8000/100"}, "", 100, of("c0", 0), ""},
		{"no limit for one of two, of which the other has more", []string{"1/8000/30", "1/8000/30"}, "", 100,
			map[string]grant.Wanted{"c0": to(-1, 0), "c1": to(-1, 100)}, "exclusive use"},
		{"no limit for one of two, and others have the rest", []string{"1/8000/30", "1/8000/30"}, "1/8000/40", 100,
			map[string]grant.Wanted{"c0": to(-1, 0), "c1": to(-1, 60)}, "all 100 are reserved"},
		{"no limit for one of two, and one is left", []string{"1/8000/30", "1/8000/30"}, "1/8000/40", 100,
			map[string]grant.Wanted{"c0": to(-1, 0), "c1": to(-1, 59)}, ""},
		{"a limit in place of none, that others have", []string{"1/8000/0"}, "1/8000/80", 100, of("c0", 30), "only 20 of 100 are free for it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEngine(t, Options{})
			e.SetNode(nodeOf("a", withCores(test.cores)))
			pod := place(t, e, podOf("u", test.pod...), "a")
			e.SetPod(pod)
			if test.other != "" {
				e.SetPod(place(t, e, podOf("other", test.other), "a"))
			}
			_, err := e.Resize(pod, test.wanted)
			if test.fails == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrResize)
			assert.ErrorContains(t, err, test.fails)
		})
	}
}

// A cluster's default is for requests without cores: a resize without cores keeps them, and one with 0
// is the same as in a new pod.
func TestResizeBesideADefaultOfCores(t *testing.T) {
	options := request.DefaultOptions()
	options.DefaultCores = 40
	e := newEngine(t, Options{Request: options})
	e.SetNode(nodeOf("a", h100(0, 0)))
	pod := place(t, e, podOf("u", "1/8000/0"), "a")
	e.SetPod(pod)
	next, err := e.Resize(pod, container0(to(9000, -1)))
	require.NoError(t, err)
	assert.Equal(t, 40, next.Containers[0][0].CorePercent)
	next, err = e.Resize(pod, container0(to(-1, 0)))
	require.NoError(t, err)
	assert.Zero(t, next.Containers[0][0].CorePercent)
	e.CancelResize(pod)
	e.SetPod(place(t, e, podOf("other", "1/8000/60"), "a"))
	e.SetNode(nodeOf("a", withCores(60)))
	_, err = e.Resize(pod, container0(to(-1, 0)))
	require.ErrorContains(t, err, "all 60 are reserved")
}

// A replica that did not decide, and one that starts again, count what was resized; what
// that is no resize is a problem as before.
func TestResizesOfOthersAreCounted(t *testing.T) {
	keys, signing := granttest.Keyring("key"), granttest.SigningKey("key")
	e := newEngine(t, Options{Keys: keys})
	e.SetNode(nodeOf("a", h100(0, 0)))
	pod := podOf("u", "1/8000/30")
	pl, err := e.Reserve(pod, requestOf(t, e, pod), "a", "test")
	require.NoError(t, err)
	more, err := wire.Annotations(pod, pl, signing, time.Unix(1, 0))
	require.NoError(t, err)
	pod = bindTo(annotated(pod, more), "a")
	e.SetPod(pod)

	next := pl
	next.Generation = 1
	next.Containers = [][]grant.Share{{{UUID: uuid(0, 0), MemoryMiB: 9000, CorePercent: 40}}}
	forged := annotated(rewritten(t, pod, next, nil), map[string]string{api.AnnotationSignature: pod.Annotations[api.AnnotationSignature]})
	e.SetPod(forged)
	assert.Equal(t, int64(8000), usedOf0(e).MemoryMiB, "one that is not signed")
	assert.Len(t, e.Problems(), 1)

	resized := rewritten(t, pod, next, signing)
	e.SetPod(resized)
	assert.Equal(t, scheduler.Use{MemoryMiB: 9000, Cores: 40, Replicas: 1}, usedOf0(e))
	assert.Empty(t, e.Problems())
	e.SetPod(pod)
	assert.Equal(t, int64(9000), usedOf0(e).MemoryMiB, "an older one, written again")
	assert.Len(t, e.Problems(), 1)

	restarted := newEngine(t, Options{Keys: keys})
	restarted.SetNode(nodeOf("a", h100(0, 0)))
	restarted.SetPod(resized)
	assert.Equal(t, int64(9000), usedOf0(restarted).MemoryMiB)
}

// Whatever is resized how, written or not, no GPU is given out twice.
func TestResizeNeverOvercommits(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		e := newEngine(r, Options{})
		e.SetNode(nodeOf("a", h100(0, 0)))
		pods := map[string]*scheduler.Pod{}
		for _, uid := range []string{"u", "v", "w"} {
			pods[uid] = place(r, e, podOf(uid, "1/10000/20"), "a")
			e.SetPod(pods[uid])
		}
		for range rapid.IntRange(1, 25).Draw(r, "steps") {
			uid := rapid.SampledFrom([]string{"u", "v", "w"}).Draw(r, "pod")
			next, err := e.Resize(pods[uid], container0(to(rapid.Int64Range(1, 80000).Draw(r, "MiB"), rapid.IntRange(0, 100).Draw(r, "cores"))))
			if err == nil && rapid.Bool().Draw(r, "written") {
				pods[uid] = rewritten(r, pods[uid], next, nil)
				e.SetPod(pods[uid])
			} else if rapid.Bool().Draw(r, "known") {
				e.CancelResize(pods[uid])
			}
			u := usedOf0(e)
			require.True(r, u.MemoryMiB <= 80000 && u.Cores <= 100 && u.Replicas == 3, "%+v", u)
			sum := int64(0)
			for _, p := range pods {
				pl, err := wire.DecodePod(p, nil)
				require.NoError(r, err)
				sum += pl.Containers[0][0].MemoryMiB
			}
			require.LessOrEqual(r, sum, u.MemoryMiB, "what is written is reserved")
		}
		for _, p := range pods {
			e.CancelResize(p)
		}
		sum := int64(0)
		for _, p := range pods {
			pl, err := wire.DecodePod(p, nil)
			require.NoError(r, err)
			sum += pl.Containers[0][0].MemoryMiB
		}
		require.Equal(r, sum, usedOf0(e).MemoryMiB)
	})
}
