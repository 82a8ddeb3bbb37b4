package extender

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuslice/gpuslice/api"
)

// story is what happened, in order.
type story struct {
	mu   sync.Mutex
	what []string
}

func (s *story) record(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.what = append(s.what, what)
}

func bindCall(w *world, p *v1.Pod) (status int) {
	status, _ = w.post("/bind", extenderv1.ExtenderBindingArgs{PodName: p.Name, PodNamespace: p.Namespace, PodUID: p.UID, Node: "n"}, nil)
	return status
}

// The next leader doesn't know what the last one's binds give away: they end before the Lease does.
func TestLeaseIsReleasedAfterLastBind(t *testing.T) {
	p := pod("p", 1, 0)
	client := fake.NewClientset(gpuNode("n"), p)
	var happened story
	under, on := make(chan struct{}), make(chan struct{})
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		close(under)
		<-on
		happened.record("bound")
		return true, nil, nil
	})
	client.PrependReactor("update", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		lease := a.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease)
		if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
			happened.record("released")
		}
		return false, nil, nil
	})
	w, stop, ended := start(t, Config{Client: client, Election: &Election{Namespace: "kube-system", Name: "extender", Identity: "first"}})
	w.becomes(http.StatusOK)
	answered := make(chan int, 1)
	go func() { answered <- bindCall(w, p) }()
	<-under
	stop()
	w.becomes(0) // no listener any more
	close(on)
	require.Equal(t, http.StatusOK, <-answered)
	require.NoError(t, <-ended)
	require.Equal(t, []string{"bound", "released"}, happened.what)
}

// A replica that lost the Lease binds no more: it cancels a waiting bind and does not change the Lease.
func TestCallsEndWithTheLease(t *testing.T) {
	p := pod("p", 1, 0, func(p *v1.Pod) {
		p.Labels = map[string]string{api.LabelGroup: "g"}
		p.Annotations = map[string]string{api.AnnotationGroupMin: "2"}
	})
	second := p.DeepCopy()
	second.Name, second.UID = "second", "second"
	client := fake.NewClientset(gpuNode("n"), p, second)
	down := make(chan struct{})
	client.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		select {
		case <-down:
			return true, nil, errors.New("the API server is unreachable")
		default:
			return false, nil, nil
		}
	})
	w, _, ended := start(t, Config{Client: client, GroupTimeout: time.Hour,
		Election: &Election{Namespace: "kube-system", Name: "extender", Identity: "first", renew: 2 * time.Second}})
	w.becomes(http.StatusOK)
	body, err := json.Marshal(extenderv1.ExtenderBindingArgs{PodName: p.Name, PodNamespace: p.Namespace, PodUID: p.UID, Node: "n"})
	require.NoError(t, err)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if r, err := http.Post(w.url+"/bind", "application/json", bytes.NewReader(body)); err == nil { // or it is cut off
			r.Body.Close()
		}
	}()
	require.Eventually(t, func() bool {
		_, text := w.status("/debug/state?format=json")
		return strings.Contains(text, `"phase":"reserved"`)
	}, time.Minute, 10*time.Millisecond)
	close(down)
	err = <-ended
	require.ErrorIs(t, err, errLost)
	require.EqualError(t, err, errLost.Error(), "nothing was waited for in vain")
	<-answered
}

// kube-scheduler hangs up, and its Binding is still under way: the pod's GPUs stay reserved, and filter gives it no others.
func TestBindWhoseCallerHungUp(t *testing.T) {
	p := pod("p", 1, 0)
	client := fake.NewClientset(gpuNode("n"), gpuNode("other"), p)
	under, on := make(chan struct{}), make(chan struct{})
	var binds atomic.Int32
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		if binds.Add(1) == 1 {
			close(under)
			<-on
		}
		return true, nil, nil
	})
	w, _, _ := start(t, Config{Client: client})
	w.becomes(http.StatusOK)
	w.nodes = []string{"n", "other"}
	body, err := json.Marshal(extenderv1.ExtenderBindingArgs{PodName: p.Name, PodNamespace: p.Namespace, PodUID: p.UID, Node: "n"})
	require.NoError(t, err)
	ctx, hangUp := context.WithCancel(t.Context())
	call, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/bind", bytes.NewReader(body))
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if r, err := http.DefaultClient.Do(call); err == nil {
			r.Body.Close()
		}
	}()
	<-under
	hangUp()
	<-ended
	w.nodes = []string{"other"}
	passed, result := w.filter(p)
	require.Empty(t, passed)
	require.Contains(t, result.FailedNodes["other"], errBinding.Error())
	var again extenderv1.ExtenderBindingResult
	status, _ := w.post("/bind", extenderv1.ExtenderBindingArgs{PodName: p.Name, PodNamespace: p.Namespace, PodUID: p.UID, Node: "other"}, &again)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, again.Error, errBinding.Error())
	_, text := w.status("/debug/state?format=json")
	require.Contains(t, text, `"phase":"reserved"`)
	close(on)
	require.Eventually(t, func() bool { passed, _ := w.filter(p); return len(passed) == 1 }, time.Minute, 10*time.Millisecond)
}
