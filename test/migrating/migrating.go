// Package migrating has decisions of HAMi, gpu-manager and gpu-admission as cases, and replays them here: through the
// request parser, the webhook, and the scheduler as plugin and as extender. docs/MIGRATING.md has a row for each difference.
//
// The originals are HAMi 4707fb02 (its webhook and the checks of a GPU: 07d38c4c, its scores: 02d88823), gpu-manager 8cd842ed, and
// gpu-admission 47d56ae (its quotas: before f7d9868).
package migrating

import (
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/quota"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

const (
	ofHAMi       = "HAMi"
	ofGPUManager = "gpu-manager"
)

//go:embed testdata
var testdata embed.FS

// Node is a node of equal GPUs: of 80000 MiB with 10 replicas (gpu-manager's: 24576 MiB, 100) if nothing else is set.
type Node struct {
	GPUs      int   `json:"gpus"`
	MemoryMiB int64 `json:"memoryMiB"`
	// MemoriesMiB has each GPU's memory, if they are not equal.
	MemoriesMiB []int64 `json:"memoriesMiB"`
	NUMA        []int   `json:"numa"`
	Links       [][]int `json:"links"`
	Model       string  `json:"model"`
	Pool        string  `json:"pool"`
}

// Placement is a case of testdata/placements.yaml, scores.yaml or decisions.json.
type Placement struct {
	Name        string            `json:"name"`
	Cluster     string            `json:"cluster"`
	Unhealthy   bool              `json:"unhealthy"`
	Cordoned    bool              `json:"cordoned"`
	Replicas    int               `json:"replicas"`
	Annotations map[string]string `json:"annotations"`
	Quota       string            `json:"quota"`
	// ResourceQuota has limits of memory and cores. Then a pod that gets GPUs fits, whatever GPUs it gets.
	ResourceQuota *quota.Limits `json:"resourceQuota"`
	// Used is the use of each node's GPUs by earlier pods: replicas/MiB/cores, "0": none.
	Used   map[string][]string `json:"used"`
	Pods   []string            `json:"pods"`
	Theirs []string            `json:"theirs"`
	Here   []string            `json:"here"`
	Row    string              `json:"row"`

	of    string
	nodes map[string]Node
}

// sameAs reports if the result here is theirs, or one of these where the original's choice is random: "0 or 1".
func sameAs(theirs, here string) bool { return slices.Contains(strings.Split(theirs, " or "), here) }

// differs counts the pods of which the result here is another one.
func (p *Placement) differs() int {
	n := 0
	for i := range p.Here {
		if !sameAs(p.Theirs[i], p.Here[i]) {
			n++
		}
	}
	return n
}

func read(t *testing.T, name string, into any) {
	t.Helper()
	data, err := testdata.ReadFile("testdata/" + name)
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(data, into))
}

// Placements are the cases of HAMi and gpu-manager.
func Placements(t *testing.T) (hami, gpuManager []Placement) {
	t.Helper()
	var file struct {
		Nodes      map[string]map[string]Node `json:"nodes"`
		HAMi       []Placement                `json:"HAMi"`
		GPUManager []Placement                `json:"gpu-manager"`
	}
	read(t, "placements.yaml", &file)
	for of, cases := range map[string][]Placement{ofHAMi: file.HAMi, ofGPUManager: file.GPUManager} {
		for i := range cases {
			cases[i].of, cases[i].nodes = of, file.Nodes[cases[i].Cluster]
			require.NotEmpty(t, cases[i].nodes, "%s: unknown nodes", cases[i].Name)
		}
	}
	return file.HAMi, file.GPUManager
}

// Admission is a case of testdata/admission.yaml.
type Admission struct {
	Name   string          `json:"name"`
	Spec   json.RawMessage `json:"spec"`
	Theirs string          `json:"theirs"`
	Here   string          `json:"here"`
	Row    string          `json:"row"`
}

// Expected is the result here.
func (a *Admission) Expected() string { return cmp.Or(a.Here, a.Theirs) }

// Manifest is the pod.
func (a *Admission) Manifest() string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": %s}`, a.Spec)
}

// Admissions are the cases of HAMi's webhook.
func Admissions(t *testing.T) []Admission {
	t.Helper()
	var file struct {
		HAMi []Admission `json:"HAMi"`
	}
	read(t, "admission.yaml", &file)
	require.NotEmpty(t, file.HAMi)
	return file.HAMi
}

// Scheduler is the plugin or the extender.
type Scheduler struct {
	Engine *engine.Engine
	// Place schedules and binds a pod as kube-scheduler does; nil: it fits nowhere.
	Place func(*v1.Pod) *v1.Pod
}

// Replay places the pods of each case through a scheduler of a cluster with these nodes.
func Replay(t *testing.T, open func(t *testing.T, nodes []*v1.Node) Scheduler) {
	hami, gpuManager := Placements(t)
	for _, c := range slices.Concat(hami, gpuManager, scores(t), decisions(t)) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel() // the plugin's cases wait for informers
			var nodes []*v1.Node
			for i, name := range slices.Sorted(maps.Keys(c.nodes)) {
				nodes = append(nodes, c.node(t, i, name))
			}
			s := open(t, nodes)
			if c.Quota != "" {
				gpus, err := quota.ParseGPUs(c.Quota)
				require.NoError(t, err)
				s.Engine.SetGPUQuota(gpus)
			}
			if c.ResourceQuota != nil {
				s.Engine.SetQuota("default", "quota", quota.Quota{Limits: *c.ResourceQuota})
			}
			var results []string
			for i, text := range append(c.use(t), c.Pods...) {
				if node, containers, there := strings.Cut(text, ":"); there {
					gpus, shares, pinned := strings.Cut(containers, "=")
					if !pinned {
						gpus, shares = "", containers
					}
					c.put(t, s.Engine, c.pod(t, i, shares), node, gpus)
					continue
				}
				results = append(results, c.place(s, c.pod(t, i, text)))
			}
			if c.Here != nil {
				require.Equal(t, c.Here, results)
				return
			}
			require.Len(t, results, len(c.Theirs))
			for i, theirs := range c.Theirs {
				require.True(t, sameAs(theirs, results[i]), "pod %d: %s, not %s", i, results[i], theirs)
			}
		})
	}
}

// use are the pods of Used.
func (p *Placement) use(t *testing.T) []string {
	t.Helper()
	var pods []string
	for _, node := range slices.Sorted(maps.Keys(p.Used)) {
		for i, text := range p.Used[node] {
			var replicas, memory, cores int
			if text == "0" {
				continue
			}
			_, err := fmt.Sscanf(text, "%d/%d/%d", &replicas, &memory, &cores)
			require.NoError(t, err)
			for k := range replicas {
				if k == 0 {
					pods = append(pods, fmt.Sprintf("%s:%d=1/%d/%d", node, i, memory-replicas+1, cores))
				} else {
					pods = append(pods, fmt.Sprintf("%s:%d=1/1/0", node, i))
				}
			}
		}
	}
	return pods
}

// put binds the pod as an earlier one, on these GPUs of the node if it has any.
func (p *Placement) put(t *testing.T, e *engine.Engine, pod *v1.Pod, node, gpus string) {
	t.Helper()
	pod.Annotations = nil
	if gpus != "" {
		var uuids []string
		for text := range strings.SplitSeq(gpus, ",") {
			i, err := strconv.Atoi(text)
			require.NoError(t, err)
			uuids = append(uuids, uuid(slices.Index(slices.Sorted(maps.Keys(p.nodes)), node), i))
		}
		pod.Annotations = map[string]string{api.AnnotationUseUUIDs: strings.Join(uuids, ",")}
	}
	model := convert.Pod(pod)
	r, err := e.Request(model)
	require.NoError(t, err)
	placement, err := e.Reserve(model, r, node, "test")
	require.NoError(t, err)
	pod.Annotations, err = wire.Annotations(model, placement, nil, time.Unix(1_800_000_000, 0))
	require.NoError(t, err)
	pod.Spec.NodeName = node
	e.SetPod(convert.Pod(pod))
}

// place returns the GPUs of each container, or the reason of the first node.
func (p *Placement) place(s Scheduler, pod *v1.Pod) string {
	bound := s.Place(pod.DeepCopy())
	if bound == nil {
		if p.of == ofGPUManager {
			return "-"
		}
		model := convert.Pod(pod)
		r, err := s.Engine.Request(model)
		if err != nil {
			return err.Error()
		}
		verdict := s.Engine.Evaluate(s.Engine.Snapshot(), model, r).Verdict("a")
		return verdict.Reason().String()
	}
	if p.ResourceQuota != nil {
		return "fits"
	}
	g, err := grant.DecodeGrant(bound.Annotations[api.AnnotationGrant])
	if err != nil {
		return err.Error()
	}
	var containers []string
	for _, c := range bound.Spec.Containers {
		var gpus []string
		for _, share := range g.Containers[c.Name] {
			n, _ := strconv.Atoi(share.UUID[len(share.UUID)-3:])
			gpus = append(gpus, strconv.Itoa(n))
		}
		containers = append(containers, strings.Join(gpus, ","))
	}
	result := strings.Join(containers, "+")
	if len(p.nodes) > 1 {
		result = bound.Spec.NodeName + ":" + result
	}
	return result
}

func uuid(node, gpu int) string { return fmt.Sprintf("GPU-%08d-0000-4000-8000-%012d", node, gpu) }

func (p *Placement) node(t *testing.T, number int, name string) *v1.Node {
	t.Helper()
	n := p.nodes[name]
	replicas, memory := 10, int64(80000)
	if p.of == ofGPUManager {
		replicas, memory = 100, 24576
	}
	if p.Replicas > 0 {
		replicas = p.Replicas
	}
	if n.MemoryMiB > 0 {
		memory = n.MemoryMiB
	}
	healthy, cores, cordoned := !p.Unhealthy, 100, ""
	all := api.NodeGPUs{Version: api.NodeGPUsVersion, Links: n.Links}
	for i := range n.GPUs {
		memory := memory
		if n.MemoriesMiB != nil {
			memory = n.MemoriesMiB[i]
		}
		gpu := api.NodeGPU{UUID: uuid(number, i), Model: "NVIDIA H100 80GB HBM3", Index: i,
			MemoryMiB: &memory, Cores: &cores, Replicas: &replicas, Mode: api.ModeShared, Healthy: &healthy}
		if n.NUMA != nil {
			gpu.NUMA = &n.NUMA[i]
		}
		if p.Cordoned {
			cordoned += gpu.UUID + ","
		}
		all.GPUs = append(all.GPUs, gpu)
	}
	text, err := json.Marshal(all)
	require.NoError(t, err)
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Annotations: map[string]string{api.AnnotationNodeGPUs: string(text), api.AnnotationHAMiCordon: cordoned},
		Labels:      map[string]string{api.LabelTencentModel: n.Model, api.LabelTencentPool: n.Pool}}}
}

func (p *Placement) pod(t *testing.T, number int, text string) *v1.Pod {
	t.Helper()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("pod-", number), UID: types.UID(fmt.Sprint("uid-", number)),
		Annotations: maps.Clone(p.Annotations)}}
	names := []string{api.ResourceGPU, api.ResourceMemory, api.ResourceCores}
	if p.of == ofGPUManager {
		names = []string{api.ResourceVcudaCore, api.ResourceVcudaMemory}
	}
	for i, container := range strings.Split(text, "+") {
		limits := v1.ResourceList{}
		for k, amount := range strings.Split(strings.TrimSpace(container), "/") {
			if q := resource.MustParse(amount); !q.IsZero() {
				limits[v1.ResourceName(names[k])] = q
			}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: fmt.Sprint("c", i), Resources: v1.ResourceRequirements{Limits: limits}})
	}
	return pod
}
