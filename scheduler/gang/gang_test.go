package gang

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
)

func member(name string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{api.LabelGroup: "g"}}}
	for _, f := range change {
		f(p)
	}
	return p
}

func TestOf(t *testing.T) {
	native := "native"
	for want, p := range map[string]*v1.Pod{
		"ns/g":                               member("p"),
		"ns/volcano (scheduling.volcano.sh)": {ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Annotations: map[string]string{api.AnnotationVolcanoGroup: "volcano"}}},
		"ns/new (scheduling.volcano.sh)":     {ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Annotations: map[string]string{api.AnnotationVolcanoGroupNew: "new"}}},
		"ns/native (scheduling.k8s.io)":      member("p", func(p *v1.Pod) { p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &native} }),
	} {
		name, ok := Of(p)
		require.True(t, ok)
		require.Equal(t, want, name.String())
	}
	_, ok := Of(&v1.Pod{})
	require.False(t, ok)
}

type none struct{ error }

func (n none) Find(Name) (Spec, error) { return Spec{}, n.error }

func TestNew(t *testing.T) {
	least := func(n string) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Annotations = map[string]string{api.AnnotationGroupMin: n} }
	}
	now := metav1.Now()
	gone := member("gone", least("9"), func(p *v1.Pod) { p.DeletionTimestamp, p.Spec.NodeName = &now, "n1" })
	ended := member("ended", least("9"), func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded })
	unknown := none{errors.New("why")}
	g := New(Name{}, []*v1.Pod{gone, ended, member("a"), member("b", least("many"))}, unknown)
	require.Len(t, g.Pods, 2)
	require.False(t, g.Started, "one that goes away counts for nothing")
	require.True(t, g.MustWait())
	require.False(t, g.Complete())
	require.Contains(t, g.Incomplete(), "it is not known how many pods must be scheduled together: why")

	g = New(Name{Namespace: "ns", Name: "g"}, []*v1.Pod{member("a", least("2")), member("b")}, unknown)
	require.Empty(t, g.Incomplete(), "one pod's annotation is enough")
	require.True(t, g.MustWait())
	g = New(Name{Namespace: "ns", Name: "g"}, []*v1.Pod{member("a", least("3")), member("b", least("2"))}, unknown)
	require.Equal(t, "group ns/g has 2 of the 3 pods that must be scheduled together", g.Incomplete())
	g = New(Name{}, []*v1.Pod{member("a"), member("b", func(p *v1.Pod) { p.Spec.NodeName = "n1" })}, unknown)
	require.False(t, g.MustWait(), "a group of which pods run, as an earlier version placed it")

	important := int32(5)
	old := New(Name{Name: "a"}, []*v1.Pod{member("a")}, unknown)
	require.True(t, old.Before(New(Name{Name: "b"}, []*v1.Pod{member("a", func(p *v1.Pod) { p.CreationTimestamp = now })}, unknown)))
	require.True(t, New(Name{Name: "b"}, []*v1.Pod{member("a", func(p *v1.Pod) { p.Spec.Priority = &important })}, unknown).Before(old), "priority goes before age")
}
