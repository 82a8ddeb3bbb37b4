package kube

import (
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/fence"
)

// server keeps one pod, and versions and binds it as an API server does.
type server struct {
	pod     *v1.Pod
	patches int
	sent    []*v1.Binding
	// answers are those to the next Bindings; arrives: a Binding takes effect although its answer is lost.
	answers []error
	arrives bool
}

func (s *server) change(f func(*v1.Pod)) {
	version, _ := strconv.Atoi(s.pod.ResourceVersion)
	f(s.pod)
	s.pod.ResourceVersion = strconv.Itoa(version + 1)
}

// land is what becomes of a Binding when it arrives.
func (s *server) land(b *v1.Binding) error {
	if b.UID != s.pod.UID || b.ResourceVersion != "" && b.ResourceVersion != s.pod.ResourceVersion || s.pod.Spec.NodeName != "" {
		return apierrors.NewConflict(podResource, "p", errors.New("precondition"))
	}
	s.change(func(p *v1.Pod) {
		p.Spec.NodeName = b.Target.Name
		p.Annotations = b.Annotations
	})
	return nil
}

func (s *server) client() *fake.Clientset {
	client := fake.NewClientset()
	client.PrependReactor("*", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		switch a := a.(type) {
		case clienttesting.CreateAction:
			b := a.GetObject().(*v1.Binding)
			s.sent = append(s.sent, b)
			if len(s.answers) > 0 {
				answer := s.answers[0]
				s.answers = s.answers[1:]
				if s.arrives {
					_ = s.land(b) // its answer is lost
				}
				return true, nil, answer
			}
			return true, nil, s.land(b)
		case clienttesting.PatchAction:
			s.patches++
			s.change(func(p *v1.Pod) { p.Annotations = map[string]string{api.AnnotationBindUnclear: "x"} })
		}
		return true, s.pod.DeepCopy(), nil
	})
	return client
}

func newServer() *server {
	p := pod("u1", "", v1.PodPending, "1")
	p.ResourceVersion = "7"
	return &server{pod: p}
}

func TestLateBinding(t *testing.T) {
	lost, granted := errors.New("connection lost"), map[string]string{api.AnnotationGrant: "g"}
	for _, tc := range []struct {
		name    string
		answer  error
		arrives bool
		changed bool // the pod, since it was seen
		patches int
		bound   bool
	}{
		{name: "its answer was lost, and it comes to nothing any more", answer: lost, patches: 1},
		{name: "the store failed, which a Binding's answer calls a conflict", answer: apierrors.NewConflict(podResource, "p", errors.New("etcd")), patches: 1, bound: true},
		{name: "it was done", answer: lost, arrives: true, bound: true},
		{name: "the pod is another version anyway", answer: lost, changed: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newServer()
			seen := s.pod.DeepCopy()
			if tc.changed {
				s.change(func(*v1.Pod) {})
			}
			s.answers, s.arrives = []error{tc.answer}, tc.arrives
			err := Bind(t.Context(), s.client(), fence.Term{}, seen, "n1", granted)
			require.Equal(t, tc.bound, err == nil, "%v", err)
			require.Equal(t, tc.patches, s.patches)
			require.Equal(t, "7", s.sent[0].ResourceVersion)
			require.Error(t, s.land(s.sent[0]), "the first request arrives at last")
			require.Equal(t, tc.bound, s.pod.Spec.NodeName != "")
		})
	}
}

func TestBindAfterChange(t *testing.T) {
	s := newServer()
	seen := s.pod.DeepCopy()
	s.change(func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} })
	require.NoError(t, Bind(t.Context(), s.client(), fence.Term{}, seen, "n1", nil))
	require.Len(t, s.sent, 2)
	require.Equal(t, "8", s.sent[1].ResourceVersion)

	s = newServer()
	seen = s.pod.DeepCopy()
	client := s.client()
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		s.change(func(*v1.Pod) {}) // always just before
		return false, nil, nil
	})
	require.ErrorContains(t, Bind(t.Context(), client, fence.Term{}, seen, "n1", nil), "precondition")
	require.Len(t, s.sent, maxTries+1)
	require.Empty(t, s.pod.Spec.NodeName)
}
