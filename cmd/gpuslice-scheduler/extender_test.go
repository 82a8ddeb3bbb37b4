package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/extender"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// extended is the configuration of a kube-scheduler that asks our extender.
const extended = "../../install/scheduler/extender-config.yaml"

// runWithExtender starts a kube-scheduler, and an extender if its configuration asks one.
func (c *cluster) runWithExtender(t testing.TB, config string) {
	settings := configuration(t, config)
	for i := range settings.Extenders {
		settings.Extenders[i].URLPrefix = c.extend(t)
	}
	c.run(t, settings)
}

// extend starts an extender, until the test ends, and returns its URL.
func (c *cluster) extend(t testing.TB) string {
	pid := os.Getpid() // two test processes would meet at one address
	address := fmt.Sprintf("127.%d.%d.%d:18182", 1+pid>>16%63, pid>>8&0xff, pid&0xff)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		_ = extender.Run(ctx, extender.Config{Client: c, Listen: address, Log: slog.New(slog.DiscardHandler),
			Engine: engine.Options{Request: request.DefaultOptions()}})
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	require.Eventually(t, func() bool {
		response, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	}, time.Minute, 10*time.Millisecond)
	return "http://" + address
}

func startWithExtender(t *testing.T, objects ...runtime.Object) *cluster {
	t.Helper()
	c := &cluster{Clientset: fake.NewClientset(objects...), t: t}
	c.PrependReactor("create", "pods", c.bind)
	c.PrependReactor("delete", "pods", c.terminate)
	c.PrependReactor("patch", "pods", c.patch)
	c.runWithExtender(t, extended)
	return c
}

// patch gives the pod another resourceVersion: kube-scheduler ignores updates with the same one.
func (c *cluster) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	handled, object, err := clienttesting.ObjectReaction(c.Tracker())(action)
	pod, ok := object.(*v1.Pod)
	if err != nil || !ok {
		return handled, object, err
	}
	pod = pod.DeepCopy()
	pod.ResourceVersion = rand.Text()
	return true, pod, c.Tracker().Update(action.GetResource(), pod, pod.Namespace)
}

// TestExtenderNominates: kube-scheduler asks the extender about 200 of 1,000 nodes at a time. The pods fit on one.
func TestExtenderNominates(t *testing.T) {
	c := startWithExtender(t, nodes(1000, 1, func(i int, node *v1.Node) {
		if i != 700 { // the others have too little memory
			node.Annotations[api.AnnotationNodeGPUs] = strings.Replace(node.Annotations[api.AnnotationNodeGPUs], "80000", "5000", 1)
		}
	})...)
	pods := tenths(8, nil)
	c.create(pods...)
	require.Equal(t, map[string]int{"n700": 8}, counts(c.where(pods)))
	c.taken()
}

// TestExtenderBeyondRefusedNominations: nodes that are nominated have no CPU left, of which the extender does not know, and
// only the fourth part of the nodes that kube-scheduler looks at has one on which the pod fits.
func TestExtenderBeyondRefusedNominations(t *testing.T) {
	c := startWithExtender(t, nodes(1000, 1, func(i int, node *v1.Node) {
		switch {
		case i >= 800:
			node.Status.Allocatable["cpu"] = resource.MustParse("1")
		case i != 700:
			node.Annotations[api.AnnotationNodeGPUs] = strings.Replace(node.Annotations[api.AnnotationNodeGPUs], "80000", "5000", 1)
		}
	})...)
	pod := gpuPod("p", 0, 70000, 0)
	pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{"nvidia.com/gpu": resource.MustParse("1"), "cpu": resource.MustParse("2")}
	c.create(pod)
	require.Equal(t, map[string]int{"n700": 1}, counts(c.where([]*v1.Pod{pod})))
}
