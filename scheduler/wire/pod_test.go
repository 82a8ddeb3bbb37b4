package wire

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/test/granttest"
)

// pod is one of an init container and two others.
func pod(node string, annotations ...string) *scheduler.Pod {
	p := &scheduler.Pod{
		UID: "uid-1", Namespace: "ns", Name: "p", Node: node, Annotations: map[string]string{},
		Containers: []scheduler.Container{{Name: "init", Kind: scheduler.Init}, {Name: "main"}, {Name: "side"}},
	}
	for i := 0; i < len(annotations); i += 2 {
		p.Annotations[annotations[i]] = annotations[i+1]
	}
	return p
}

const (
	named = `{"version":1,"node":"node-1","containers":{"main":[{"uuid":"` + gpuA + `","memoryMiB":3000,"cores":30}]}}`
	hami  = ";" + gpuA + ",NVIDIA,3000,30:;;"
)

func TestDecodePod(t *testing.T) {
	want := func(node string) *scheduler.Placement {
		return &scheduler.Placement{Node: node, Containers: [][]grant.Share{nil, {{UUID: gpuA, MemoryMiB: 3000, CorePercent: 30}}, nil}}
	}
	ended := pod("node-1", api.AnnotationGrant, named)
	ended.Ended = true
	for _, test := range []struct {
		description string
		pod         *scheduler.Pod
		want        *scheduler.Placement
	}{
		{"nothing", pod("node-1"), nil},
		{"ours", pod("node-1", api.AnnotationGrant, named), want("node-1")},
		{"ours, of a pod that waits", pod("", api.AnnotationGrant, named), want("node-1")},
		{"ours, that names no node", pod("node-2", api.AnnotationGrant, strings.Replace(named, `"node":"node-1",`, "", 1)), want("node-2")},
		{"ours before HAMi's", pod("node-1", api.AnnotationGrant, named, api.AnnotationHAMiAllocated, ";;"+gpuB+",NVIDIA,1,1:;"), want("node-1")},
		{"HAMi's", pod("node-1", api.AnnotationHAMiAllocated, hami, api.AnnotationHAMiNode, "node-1"), want("node-1")},
		{"HAMi's, erased by its node half", pod("node-1", api.AnnotationHAMiAllocated, hami, api.AnnotationHAMiToAllocate, ";;;"), want("node-1")},
		{"HAMi's, that waits for its node half", pod("", api.AnnotationHAMiToAllocate, hami, api.AnnotationHAMiNode, "node-1"), want("node-1")},
		{"HAMi's, with more empty entries than containers", pod("node-1", api.AnnotationHAMiAllocated, hami+";;"), want("node-1")},
		{"HAMi's, with fewer", pod("node-1", api.AnnotationHAMiAllocated, ";"+gpuA+",NVIDIA,3000,30:;"), want("node-1")},
		{"HAMi's, of nothing", pod("node-1", api.AnnotationHAMiAllocated, ";;;", api.AnnotationHAMiNode, "node-2"), nil},
		{"one that has ended", ended, nil},
	} {
		t.Run(test.description, func(t *testing.T) {
			got, err := DecodePod(test.pod, nil)
			require.NoError(t, err)
			assert.Equal(t, test.want, got)
		})
	}
}

func TestDecodePodRefuses(t *testing.T) {
	for _, test := range []struct {
		description string
		pod         *scheduler.Pod
		want        string
	}{
		{"ours, cut short", pod("node-1", api.AnnotationGrant, named[:50]), "pod ns/p: annotation gpuslice.io/grant: not valid JSON"},
		{"a fault in ours doesn't lead to HAMi's", pod("node-1", api.AnnotationGrant, "", api.AnnotationHAMiAllocated, hami), "annotation gpuslice.io/grant"},
		{"a container that the pod doesn't have", pod("node-1", api.AnnotationGrant, strings.Replace(named, "main", "debugger", 1)), `the pod has no container "debugger"`},
		{"another node", pod("node-2", api.AnnotationGrant, named), `node "node-1": the pod is on node "node-2"`},
		{"no node at all", pod("", api.AnnotationGrant, strings.Replace(named, `"node":"node-1",`, "", 1)), "no node, and the pod is not bound"},
		{"HAMi's, cut short", pod("node-1", api.AnnotationHAMiAllocated, hami[:30]), "annotation hami.io/vgpu-devices-allocated"},
		{"HAMi's other one, cut short", pod("node-1", api.AnnotationHAMiToAllocate, hami[:30]), "annotation hami.io/vgpu-devices-to-allocate"},
		{"HAMi's, of a container too many", pod("node-1", api.AnnotationHAMiAllocated, ";;"+hami), "position 3: the pod has 3 containers"},
		{"HAMi's, another node", pod("node-2", api.AnnotationHAMiAllocated, hami, api.AnnotationHAMiNode, "node-1"), "annotation hami.io/vgpu-node"},
		{"HAMi's, no node", pod("", api.AnnotationHAMiAllocated, hami), "no node, and the pod is not bound"},
	} {
		t.Run(test.description, func(t *testing.T) {
			got, err := DecodePod(test.pod, nil)
			require.ErrorContains(t, err, test.want)
			assert.Nil(t, got)
		})
	}
}

func TestDecodePodVerifies(t *testing.T) {
	k := granttest.SigningKey("1")
	placement := scheduler.Placement{Node: "node-1", Containers: [][]grant.Share{nil, {{UUID: gpuA, MemoryMiB: 3000, CorePercent: 30}}}}
	annotations, err := Annotations(pod(""), placement, k, time.Unix(1, 0))
	require.NoError(t, err)
	signed := func() *scheduler.Pod {
		p := pod("node-1")
		p.Annotations = maps.Clone(annotations)
		return p
	}
	got, err := DecodePod(signed(), granttest.Keyring("2", "1"))
	require.NoError(t, err)
	assert.Equal(t, "node-1", got.Node)

	for name, change := range map[string]func(p *scheduler.Pod){
		"another pod": func(p *scheduler.Pod) { p.UID = "uid-2" },
		"more": func(p *scheduler.Pod) {
			p.Annotations[api.AnnotationGrant] = strings.Replace(named, "3000", "4000", 1)
		},
		"no signature":       func(p *scheduler.Pod) { delete(p.Annotations, api.AnnotationSignature) },
		"a signature's half": func(p *scheduler.Pod) { p.Annotations[api.AnnotationSignature] = "v1:" },
		"only HAMi's": func(p *scheduler.Pod) {
			delete(p.Annotations, api.AnnotationGrant)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := signed()
			change(p)
			got, err := DecodePod(p, granttest.Keyring("1"))
			require.ErrorIs(t, err, grant.ErrSignature)
			assert.Nil(t, got)
			_, err = DecodePod(p, nil)
			require.NoError(t, err, "without keys a signature isn't looked at")
		})
	}
	_, err = DecodePod(signed(), granttest.Keyring("2"))
	require.ErrorIs(t, err, grant.ErrSignature, "another key")
	_, err = DecodePod(pod("node-1"), granttest.Keyring("1"))
	require.NoError(t, err, "nothing to sign")
}

func TestAnnotations(t *testing.T) {
	p := pod("")
	got, err := Annotations(p, scheduler.Placement{Node: "node-1", Containers: [][]grant.Share{nil, {{UUID: gpuA, MemoryMiB: 3000, CorePercent: 30}}}}, nil, time.Unix(1700000000, 5))
	require.NoError(t, err)
	assert.Equal(t, map[string]string{
		"gpuslice.io/grant":                named,
		"hami.io/vgpu-node":                "node-1",
		"hami.io/vgpu-time":                "1700000000",
		"hami.io/vgpu-devices-to-allocate": hami,
		"hami.io/vgpu-devices-allocated":   hami,
		"hami.io/bind-phase":               "success",
		"hami.io/bind-time":                "1700000000",
	}, got)
	onHAMi, err := Annotations(p, scheduler.Placement{Node: "node-1", HAMi: true, Containers: [][]grant.Share{nil, {{UUID: gpuA, MemoryMiB: 3000, CorePercent: 30}}}}, nil, time.Unix(1700000000, 5))
	require.NoError(t, err)
	assert.Equal(t, "allocating", onHAMi["hami.io/bind-phase"], "HAMi's device plugin looks for it")
	for annotation := range got {
		assert.True(t, api.IsOwned(annotation), annotation)
	}

	share := [][]grant.Share{{{UUID: gpuA, MemoryMiB: 1}}}
	k := granttest.SigningKey("1")
	noUID := pod("")
	noUID.UID = ""
	for want, call := range map[string]func() (map[string]string, error){
		"the placement has no node": func() (map[string]string, error) {
			return Annotations(p, scheduler.Placement{Containers: share}, nil, time.Now())
		},
		"0 containers": func() (map[string]string, error) {
			return Annotations(p, scheduler.Placement{Node: "n"}, nil, time.Now())
		},
		"has 4 containers, the pod has 3": func() (map[string]string, error) {
			return Annotations(p, scheduler.Placement{Node: "n", Containers: make([][]grant.Share, 4)}, nil, time.Now())
		},
		"pod UID, node and payload must not be": func() (map[string]string, error) {
			return Annotations(noUID, scheduler.Placement{Node: "n", Containers: share}, k, time.Now())
		},
	} {
		_, err := call()
		require.ErrorContains(t, err, "annotations of pod ns/p: ")
		require.ErrorContains(t, err, want)
	}
}

// What is written is what is read: by names, by positions only, and on the node.
func TestPlacementsReadBack(t *testing.T) {
	gpus := []string{gpuA, gpuB, gpuC}
	keys := granttest.Keyring("1")
	rapid.Check(t, func(t *rapid.T) {
		p := &scheduler.Pod{UID: "uid", Namespace: "ns", Name: "p", Annotations: map[string]string{}}
		want := scheduler.Placement{Node: "node-1"}
		some := false
		for i := range rapid.IntRange(1, 5).Draw(t, "containers") {
			p.Containers = append(p.Containers, scheduler.Container{Name: string(rune('a' + i))})
			var shares []grant.Share
			for _, uuid := range rapid.SliceOfNDistinct(rapid.SampledFrom(gpus), 0, 3, rapid.ID).Draw(t, "gpus") {
				shares = append(shares, grant.Share{UUID: uuid, MemoryMiB: rapid.Int64Range(1, grant.MaxMemoryMiB).Draw(t, "memory"), CorePercent: rapid.IntRange(0, 100).Draw(t, "cores")})
			}
			some = some || len(shares) > 0
			want.Containers = append(want.Containers, shares)
		}
		if !some {
			want.Containers[0] = []grant.Share{{UUID: gpuA, MemoryMiB: 1}}
		}
		k := granttest.SigningKey("1")
		written, err := Annotations(p, want, k, time.Unix(1700000000, 0))
		require.NoError(t, err)
		p.Annotations = written
		p.Node = rapid.SampledFrom([]string{"", "node-1"}).Draw(t, "bound to")

		got, err := DecodePod(p, keys)
		require.NoError(t, err)
		require.Equal(t, &want, got)

		for i := range p.Containers {
			g, err := grant.FromPod(t.Context(), grant.Pod{UID: "uid", Annotations: written}, p.Containers[i].Name, "node-1", nil, nil)
			require.NoError(t, err)
			if g == nil {
				g = &grant.Grant{}
			}
			require.Equal(t, want.Containers[i], g.Shares, "on the node")
		}

		delete(written, api.AnnotationGrant)
		delete(written, api.AnnotationSignature)
		got, err = DecodePod(p, nil)
		require.NoError(t, err)
		require.Equal(t, &want, got, "only HAMi's")
	})
}

func TestIsOwned(t *testing.T) {
	for key, want := range map[string]bool{
		"gpuslice.io/grant": true, "gpuslice.io/grant-signature": true, "gpuslice.io/mig-1g.10gb": true, "tencent.com/predicate-gpu-idx-0": true,
		"tencent.com/predicate-time": true, "tencent.com/gpu-assigned": true, "hami.io/bind-phase": true, "hami.io/vgpu-mig-allocations": true,
		"gpuslice.io/grants": false, "gpuslice.io/core-ceiling": false, "tencent.com/vcuda-core-limit": false, "nvidia.com/use-gpuuuid": false, "tencent.com/predicate": false, "": false,
	} {
		assert.Equal(t, want, api.IsOwned(key), key)
	}
	assert.Len(t, slices.Compact(slices.Sorted(slices.Values(api.Owned))), len(api.Owned))
}

func FuzzDecodePod(f *testing.F) {
	f.Add(named, "", hami, hami, "node-1", true)
	f.Add("", "v1:00", "", hami, "", false)
	f.Add(`{"version":1,"containers":{"x":[]}}`, "", ";;;", "", "node-2", true)
	keys := granttest.Keyring("1")
	f.Fuzz(func(t *testing.T, ours, signature, allocated, pending, node string, bound bool) {
		p := pod("")
		if bound {
			p.Node = "node-1"
		}
		for key, value := range map[string]string{
			api.AnnotationGrant: ours, api.AnnotationSignature: signature, api.AnnotationHAMiAllocated: allocated,
			api.AnnotationHAMiToAllocate: pending, api.AnnotationHAMiNode: node,
		} {
			if value != "" {
				p.Annotations[key] = value
			}
		}
		placement, err := DecodePod(p, nil)
		if err != nil || placement == nil {
			require.Nil(t, placement)
			return
		}
		require.Len(t, placement.Containers, len(p.Containers))
		require.NotEmpty(t, placement.Node)
		for _, shares := range placement.Containers {
			if len(shares) > 0 {
				require.NoError(t, grant.ValidateShares(shares))
			}
		}
		_, err = DecodePod(p, keys)
		require.ErrorIs(t, err, grant.ErrSignature, "a random signature is not valid")
	})
}

// Volcano writes positions of the app containers that request its vGPUs only.
func TestDecodeVolcanosPod(t *testing.T) {
	vgpu := func(name string, kind scheduler.Kind, resource string) scheduler.Container {
		c := scheduler.Container{Name: name, Kind: kind}
		if resource != "" {
			c.Resources = map[string]scheduler.Amount{resource: {Value: 1}}
		}
		return c
	}
	p := &scheduler.Pod{UID: "u", Namespace: "ns", Name: "p", Node: "node-1", Containers: []scheduler.Container{
		vgpu("setup", scheduler.Init, api.ResourceVolcanoGPU), vgpu("proxy", scheduler.App, ""), vgpu("first", scheduler.App, api.ResourceVolcanoGPU),
		vgpu("second", scheduler.App, api.ResourceVolcanoMemory),
	}, Annotations: map[string]string{
		api.AnnotationVolcanoNode:      "node-1",
		api.AnnotationVolcanoAllocated: gpuA + ",NVIDIA,1000,10:;" + gpuB + ",NVIDIA,2000,20:",
	}}
	got, err := DecodePod(p, nil)
	require.NoError(t, err)
	require.Equal(t, [][]grant.Share{nil, nil, {{UUID: gpuA, MemoryMiB: 1000, CorePercent: 10}}, {{UUID: gpuB, MemoryMiB: 2000, CorePercent: 20}}}, got.Containers)

	p.Containers = p.Containers[:3]
	_, err = DecodePod(p, nil)
	require.ErrorContains(t, err, "position 1: the pod has 1 containers with a position")
	_, err = DecodePod(p, granttest.Keyring("1"))
	require.Error(t, err, "it can't be signed")
}
