package extender

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/api"
)

// Autoscalers simulate with nodes that exist only in the call: copies of a node, or only its labels.
func TestDryRunOfTemplateNodes(t *testing.T) {
	w := newWorld(t, 1, 1)
	full, _ := w.filter(pod("running", 81920, 100))
	require.Equal(t, w.nodes, full)

	labels := map[string]string{api.LabelPrefix + "count": "2", api.LabelPrefix + "memory": "81920", api.LabelPrefix + "model": "NVIDIA-H100-80GB-HBM3"}
	with := func(more map[string]string) map[string]string {
		all := maps.Clone(labels)
		maps.Copy(all, more)
		return all
	}
	copied := map[string]string{"gpuslice.io/node-gpus": register(0, 1)}
	used := `{"version":1,"gpus":[{"uuid":"` + gpuUUID(0, 0) + `","model":"NVIDIA H100 80GB HBM3","index":0,"memoryMiB":81920,"cores":100,"replicas":10,` +
		`"mode":"hami-core","healthy":false,"others":{"memoryMiB":81920,"cores":100,"replicas":1}}]}`
	whole := pod("wanted", 81920, 100)
	pinned := pod("pinned", 81920, 100, func(p *v1.Pod) { p.Annotations = map[string]string{api.AnnotationUseUUIDs: gpuUUID(0, 0)} })
	typed := pod("typed", 1000, 0, func(p *v1.Pod) { p.Annotations = map[string]string{api.AnnotationUseTypes: "H100"} })
	other := pod("other", 1000, 0, func(p *v1.Pod) { p.Annotations = map[string]string{api.AnnotationUseTypes: "A100"} })
	for name, test := range map[string]struct {
		pod    *v1.Pod
		node   string
		object metav1.ObjectMeta
		want   string // of the refusal
	}{
		"a copy of a full node":                 {whole, "", metav1.ObjectMeta{Annotations: copied}, ""},
		"a copy of a node that docker uses":     {whole, "", metav1.ObjectMeta{Annotations: map[string]string{api.AnnotationNodeGPUs: used, api.AnnotationHAMiCordon: gpuUUID(0, 0)}}, ""},
		"the UUIDs of a new node are not known": {pinned, "", metav1.ObjectMeta{Annotations: copied}, "UUID"},
		"a node that exists is judged as it is": {whole, w.nodes[0], metav1.ObjectMeta{Annotations: copied}, "1 in use"},
		"labels of a node group":                {whole, "", metav1.ObjectMeta{Labels: labels}, ""},
		"labels with the model that is wanted":  {typed, "", metav1.ObjectMeta{Labels: labels}, ""},
		"labels with another model":             {other, "", metav1.ObjectMeta{Labels: labels}, "type"},
		"labels with too little memory":         {whole, "", metav1.ObjectMeta{Labels: with(map[string]string{api.LabelPrefix + "memory": "40960"})}, "40960"},
		"labels of GPUs in MIG mode":            {whole, "", metav1.ObjectMeta{Labels: with(map[string]string{api.LabelPrefix + "mode": "mig"})}, "in MIG mode"},
		"labels that can't be read":             {whole, "", metav1.ObjectMeta{Labels: with(map[string]string{api.LabelPrefix + "memory": "80GB"})}, "must be a number"},
		"labels with too many GPUs":             {whole, "", metav1.ObjectMeta{Labels: with(map[string]string{api.LabelPrefix + "count": "1000000000"})}, "at most 64"},
		"annotations that can't be read":        {whole, "", metav1.ObjectMeta{Annotations: map[string]string{api.AnnotationNodeGPUs: "{"}}, "JSON"},
		"a node group without GPUs":             {whole, "", metav1.ObjectMeta{}, "no GPUs"},
	} {
		t.Run(name, func(t *testing.T) {
			object := v1.Node{ObjectMeta: test.object}
			if object.Name = test.node; object.Name == "" {
				object.Name = "template-node-for-pool-1"
			}
			var result extenderv1.ExtenderFilterResult
			w.post("/filter-dryrun", extenderv1.ExtenderArgs{Pod: test.pod, Nodes: &v1.NodeList{Items: []v1.Node{object}}}, &result)
			if test.want == "" {
				require.Len(t, result.Nodes.Items, 1, "%v %v", result.FailedNodes, result.FailedAndUnresolvableNodes)
				return
			}
			require.Empty(t, result.Nodes.Items)
			require.Contains(t, result.FailedNodes[object.Name]+result.FailedAndUnresolvableNodes[object.Name], test.want)
		})
	}
	require.Empty(t, w.engine.AllocatedNode("uid-wanted"), "a simulation reserves nothing")
	require.Len(t, w.engine.State("").Nodes, 1, "and adds no node")
}
