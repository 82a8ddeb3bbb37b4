package request

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
)

func TestSignature(t *testing.T) {
	sign := func(p *scheduler.Pod) string {
		r, err := FromPod(p, DefaultOptions())
		require.NoError(t, err)
		return r.Signature
	}
	assert.Equal(t, "a1m3000c30;", sign(pod(resources{gpu: 1, gpumem: 3000, cores: 30})))
	assert.Equal(t, `a1%100c100;t"h200"n`, sign(annotated(map[string]string{api.AnnotationUseTypes: "H200", api.AnnotationNUMABind: "true"})))

	p, q := pod(resources{gpu: 1, gpumem: 3000}), pod(resources{gpumem: 3000, prio: 0})
	q.Containers = append([]scheduler.Container{{Name: "istio"}}, q.Containers...)
	q.UID, q.Group = "other", "ns/g"
	assert.Equal(t, sign(p), sign(q), "no node cares")
	q.Containers[1].Kind = scheduler.Init
	assert.NotEqual(t, sign(p), sign(q))
}

// evaluated is all that a node uses.
func evaluated(r *Request) string {
	s := ""
	for i, c := range r.Containers {
		c.LeastCores = 0 // only of ResourceClaims
		if c.GPUs > 0 {
			s += fmt.Sprintf("%d %+v\n", r.Kinds[i], c)
		}
	}
	return s + fmt.Sprintf("%#v", r.Rules)
}

// draw draws the annotations of a pod for one key, or for its containers if the key is empty.
func draw(t *rapid.T, p *scheduler.Pod, key string) {
	values := []string{"", "a", "a,b", "b,a", `a"T"b`, `a"t"b`, `"`, `a"`, " a"}
	switch key {
	case "":
		p.Containers = nil
		for range rapid.IntRange(1, 3).Draw(t, "containers") {
			s := rapid.SampledFrom([]resources{{}, {gpu: 1}, {gpu: 11}, {gpu: 1, gpumem: 1}, {gpu: 1, gpumem: 11}, {gpumem: 1}, {percent: 1}, {gpu: 1, gpumem: 1, cores: 1},
				{gpu: 1, gpumem: 1, cores: 11, prio: 1}, {percent: 100}, {vcore: 100}, {vcore: 1, vmem: 1}}).Draw(t, "resources")
			c := s.container("c")
			c.Kind = rapid.SampledFrom([]scheduler.Kind{scheduler.App, scheduler.Init, scheduler.Sidecar}).Draw(t, "kind")
			p.Containers = append(p.Containers, c)
		}
		return
	case api.AnnotationUseUUIDs, api.AnnotationAvoidUUIDs:
		values = []string{"", gpuA, gpuB, gpuA + "," + gpuB, gpuB + "," + gpuA}
	case api.AnnotationNodePolicy, api.AnnotationGPUPolicy:
		values = []string{"", "spread", "binpack", "binpack,spread", "spread,binpack", " spread"}
	case api.AnnotationWeights:
		values = []string{"", "slot=1,core=1,memory=3", "slot=1,core=11,memory=3"}
	case api.AnnotationNUMABind:
		values = []string{"true", "1", "false"}
	case api.AnnotationIsolation:
		values = []string{"any", "limiter", "driver", "hardware"}
	case api.AnnotationMode:
		values = []string{"", "mig", "mig,mps", "mps,mig"}
	}
	p.Annotations[key] = rapid.SampledFrom(values).Draw(t, key)
}

var drawn = []string{"", api.AnnotationUseTypes, api.AnnotationAvoidTypes, api.AnnotationGPUPolicy, api.AnnotationNodePolicy, api.AnnotationWeights,
	api.AnnotationUseUUIDs, api.AnnotationAvoidUUIDs, api.AnnotationNUMABind, api.AnnotationMode, api.AnnotationIsolation}

var genPod = rapid.Custom(func(t *rapid.T) *scheduler.Pod {
	p := &scheduler.Pod{Annotations: map[string]string{}}
	for _, key := range drawn {
		draw(t, p, key)
	}
	return p
})

// Signatures are equal exactly where what a node looks at is.
func TestSignaturesDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := genPod.Draw(t, "a")
		a, err := FromPod(p, DefaultOptions())
		require.NoError(t, err)
		p = &scheduler.Pod{Annotations: maps.Clone(p.Annotations), Labels: p.Labels, Containers: p.Containers}
		for _, key := range rapid.SliceOfN(rapid.SampledFrom(drawn), 1, 2).Draw(t, "what differs") {
			draw(t, p, key)
		}
		b, err := FromPod(p, DefaultOptions())
		require.NoError(t, err)
		if a == nil || b == nil {
			return
		}
		require.Equal(t, evaluated(a) == evaluated(b), a.Signature == b.Signature, "%s\n%s", a.Signature, b.Signature)
	})
}

// A pod with the defaults of the webhook is read as one that bypassed it.
func TestWebhooksDefaultsChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := genPod.Draw(t, "pod")
		o := DefaultOptions()
		o.DefaultCount = rapid.IntRange(1, 16).Draw(t, "count")
		o.DefaultCores = rapid.IntRange(0, 100).Draw(t, "cores")
		o.DefaultMemoryMiB = rapid.SampledFrom([]int64{0, 1, 5000}).Draw(t, "memory")
		before, err := FromPod(p, o)
		require.NoError(t, err)
		for i, c := range p.Containers {
			if before == nil || before.Containers[i].GPUs == 0 || c.Resources[vcore].Value > 0 {
				continue
			}
			c.Resources[gpu] = scheduler.Amount{Value: int64(before.Containers[i].GPUs)}
			requested := before.Containers[i].Cores
			if before.Rules.Isolation == grant.IsolationHardware {
				requested = before.Containers[i].LeastCores
			}
			c.Resources[cores] = scheduler.Amount{Value: int64(requested)}
		}
		after, err := FromPod(p, o)
		require.NoError(t, err)
		require.Equal(t, before, after)
	})
}

func FuzzFromPod(f *testing.F) {
	f.Add(int64(1), int64(3000), int64(0), int64(30), int64(0), int64(0), uint8(0b01011), api.AnnotationUseTypes, "H200,A100")
	f.Add(int64(0), int64(0), int64(0), int64(0), int64(150), int64(4), uint8(0b110000), api.AnnotationUseUUIDs, gpuA)
	f.Add(int64(-1), int64(1<<62), int64(101), int64(200), int64(1<<63-1), int64(-1<<63), uint8(0xff), api.AnnotationGroupMin, "-1")
	f.Fuzz(func(t *testing.T, count, memory, percentage, core, vcudaCore, vcudaMemory int64, there uint8, key, value string) {
		s := resources{}
		for i, r := range []struct {
			name string
			n    int64
		}{{gpu, count}, {gpumem, memory}, {percent, percentage}, {cores, core}, {vcore, vcudaCore}, {vmem, vcudaMemory}} {
			if there&(1<<i) != 0 {
				s[r.name] = r.n
			}
		}
		p := pod(s)
		p.Annotations = map[string]string{key: value}
		r, err := FromPod(p, DefaultOptions())
		if err != nil {
			var refused *Error
			require.ErrorAs(t, err, &refused)
			require.NotEmpty(t, refused.Why)
			return
		}
		if r == nil {
			for _, n := range s {
				require.Zero(t, n, "nothing is passed over")
			}
			return
		}
		c := r.Containers[0]
		require.True(t, 1 <= c.GPUs && c.GPUs <= 16 && 0 <= c.Cores && c.Cores <= 100, "%+v", c)
		require.True(t, (c.MemoryMiB > 0) != (c.MemoryPercent > 0), "%+v", c)
		require.True(t, c.MemoryMiB <= 16<<20 && c.MemoryPercent <= 100, "%+v", c)
		again, err := FromPod(p, DefaultOptions())
		require.NoError(t, err)
		require.Equal(t, r, again)
	})
}

func BenchmarkFromPod(b *testing.B) {
	plain := pod(resources{gpu: 1, gpumem: 3000, cores: 30})
	ruled := annotated(map[string]string{api.AnnotationUseTypes: "H200,A100", api.AnnotationGPUPolicy: "binpack", "kubectl.kubernetes.io/last-applied-configuration": "{}"})
	none := &scheduler.Pod{Containers: make([]scheduler.Container, 2)}
	for name, p := range map[string]*scheduler.Pod{"plain": plain, "ruled": ruled, "none": none} {
		b.Run(name, func(b *testing.B) {
			o := DefaultOptions()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := FromPod(p, o); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
