package kube

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
)

func TestAmount(t *testing.T) {
	for text, want := range map[string]scheduler.Amount{
		"0":                    {},
		"1":                    {Value: 1},
		"-1":                   {Value: -1},
		"8k":                   {Value: 8000},
		"8Ki":                  {Value: 8192},
		"1000m":                {Value: 1},
		"1e3":                  {Value: 1000},
		"9223372036854775807":  {Value: 1<<63 - 1},
		"1500m":                {Invalid: "1500m is not a whole number"},
		"0.5":                  {Invalid: "500m is not a whole number"},
		"1n":                   {Invalid: "1n is not a whole number"},
		"9223372036854775808":  {Invalid: "9223372036854775808 does not fit in 64 bits"},
		"-9223372036854775809": {Invalid: "-9223372036854775809 does not fit in 64 bits"},
		"16E":                  {Invalid: "16E does not fit in 64 bits"},
		"1e30":                 {Invalid: "1e30 does not fit in 64 bits"},
	} {
		t.Run(text, func(t *testing.T) {
			require.Equal(t, want, convert.Amount(resource.MustParse(text)))
		})
	}
}

// gpuPod has one container of each kind.
func gpuPod() *v1.Pod {
	always, priority := v1.ContainerRestartPolicyAlways, int32(7)
	gpu := v1.ResourceList{"nvidia.com/gpu": resource.MustParse("1"), "cpu": resource.MustParse("2")}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			UID: "u1", Namespace: "ns", Name: "p", ResourceVersion: "5",
			CreationTimestamp: metav1.NewTime(time.Unix(100, 0)),
			Labels:            map[string]string{"l": "1"}, Annotations: map[string]string{"a": "2"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		},
		Spec: v1.PodSpec{
			NodeName: "n1", Priority: &priority,
			InitContainers: []v1.Container{
				{Name: "init", Resources: v1.ResourceRequirements{Limits: gpu, Requests: gpu}},
				{Name: "sidecar", RestartPolicy: &always, Resources: v1.ResourceRequirements{Requests: gpu}},
			},
			Containers: []v1.Container{
				{Name: "none", Image: "i", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"memory": resource.MustParse("1Gi")}}},
				{Name: "main", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"nvidia.com/gpumem": resource.MustParse("1500m")}}},
			},
		},
		Status: v1.PodStatus{Phase: v1.PodRunning, Message: "long"},
	}
}

func TestPod(t *testing.T) {
	one := map[string]scheduler.Amount{"nvidia.com/gpu": {Value: 1}}
	want := &scheduler.Pod{
		UID: "u1", Namespace: "ns", Name: "p", Node: "n1", Priority: 7, Created: time.Unix(100, 0),
		Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "2"},
		Containers: []scheduler.Container{
			{Name: "init", Kind: scheduler.Init, Resources: one},
			{Name: "sidecar", Kind: scheduler.Sidecar, Resources: one},
			{Name: "none", Kind: scheduler.App},
			{Name: "main", Kind: scheduler.App, Resources: map[string]scheduler.Amount{"nvidia.com/gpumem": {Invalid: "1500m is not a whole number"}}},
		},
	}
	require.Equal(t, want, convert.Pod(gpuPod()))
	slim, err := Slim(gpuPod())
	require.NoError(t, err)
	require.Equal(t, want, convert.Pod(slim.(*v1.Pod)), "nothing that is read is dropped")
	again, err := Slim(slim)
	require.NoError(t, err)
	require.Equal(t, slim, again)
	require.Nil(t, slim.(*v1.Pod).ManagedFields)
	require.Empty(t, slim.(*v1.Pod).Spec.Containers[0].Image)
}

func TestPodEnds(t *testing.T) {
	now := metav1.Now()
	for _, tc := range []struct {
		name     string
		phase    v1.PodPhase
		deletion *metav1.Time
		want     bool
	}{
		{"waits", v1.PodPending, nil, false},
		{"runs", v1.PodRunning, nil, false},
		{"is being deleted, and runs until it is gone", v1.PodRunning, &now, false},
		{"is not known of", v1.PodUnknown, nil, false},
		{"succeeded", v1.PodSucceeded, nil, true},
		{"failed", v1.PodFailed, nil, true},
		{"failed while it was deleted", v1.PodFailed, &now, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: tc.deletion}, Status: v1.PodStatus{Phase: tc.phase}}
			require.Equal(t, tc.want, convert.Pod(p).Ended)
		})
	}
}

func TestNode(t *testing.T) {
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "2"}},
		Status:     v1.NodeStatus{Images: []v1.ContainerImage{{Names: []string{"big"}}}},
	}
	want := &scheduler.Node{Name: "n1", Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "2"}}
	require.Equal(t, want, convert.Node(n))
	slim, err := Slim(n)
	require.NoError(t, err)
	require.Equal(t, want, convert.Node(slim.(*v1.Node)))
	require.Empty(t, slim.(*v1.Node).Status.Images)
}
