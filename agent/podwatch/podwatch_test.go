package podwatch

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
)

// journal records the calls.
type journal struct {
	mu     sync.Mutex
	lines  []string
	listed map[string]bool
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

func (j *journal) Set(p grant.Pod) {
	j.add("set %s %s/%s %v", p.UID, p.Namespace, p.Name, p.Annotations)
}
func (j *journal) Gone(uid string) { j.add("gone %s", uid) }
func (j *journal) Listed(uids map[string]bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.listed = uids
}

func (j *journal) until(t *testing.T, line string) {
	t.Helper()
	require.Eventually(t, func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		return len(j.lines) > 0 && j.lines[len(j.lines)-1] == line
	}, time.Minute, 5*time.Millisecond, "%s", line)
}

func podMeta(uid, name string, annotations map[string]string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: "ns", Name: name, Annotations: annotations, Labels: map[string]string{"l": "x"}},
	}
}

func follow(t testing.TB, sink Sink, objects ...k8sruntime.Object) *metadatafake.FakeMetadataClient {
	scheme := metadatafake.NewTestScheme()
	require.NoError(t, metav1.AddMetaToScheme(scheme))
	client := metadatafake.NewSimpleMetadataClient(scheme, objects...)
	w := &Watch{client: client, node: "n1", sink: sink, log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return client
}

func TestWatch(t *testing.T) {
	j := &journal{}
	client := follow(t, j, podMeta("u1", "p", map[string]string{api.AnnotationGrant: "a", "other": "x"}))
	j.until(t, "set u1 ns/p map[gpuslice.io/grant:a]")
	require.Eventually(t, func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.listed["u1"]
	}, time.Minute, 5*time.Millisecond)
	require.Eventually(t, func() bool { // a moment after the list
		asked := false
		for _, a := range client.Actions() {
			if watch, is := a.(clienttesting.WatchAction); is {
				assert.Equal(t, "spec.nodeName=n1", watch.GetWatchRestrictions().Fields.String(), "no other node's pods are asked for")
				asked = true
			}
		}
		return asked
	}, time.Minute, 5*time.Millisecond)
	ns := client.Resource(pods).Namespace("ns").(metadatafake.MetadataClient)
	_, err := ns.UpdateFake(podMeta("u1", "p", map[string]string{api.AnnotationGrant: "b", api.AnnotationSignature: "s"}), metav1.UpdateOptions{})
	require.NoError(t, err)
	j.until(t, "set u1 ns/p map[gpuslice.io/grant:b gpuslice.io/grant-signature:s]")
	_, err = ns.UpdateFake(podMeta("u2", "p", nil), metav1.UpdateOptions{})
	require.NoError(t, err)
	j.until(t, "set u2 ns/p map[]")
	j.mu.Lock()
	assert.Contains(t, j.lines, "gone u1", "another pod of the same name")
	j.mu.Unlock()
	require.NoError(t, ns.Delete(t.Context(), "p", metav1.DeleteOptions{}))
	j.until(t, "gone u2")
}

// BenchmarkMemory is what the pods of a full node take in memory, with annotations as long as
// people write them.
func BenchmarkMemory(b *testing.B) {
	const count = 250
	var objects []k8sruntime.Object
	for i := range count {
		objects = append(objects, podMeta(fmt.Sprint("u", i), fmt.Sprint("p", i), map[string]string{
			api.AnnotationGrant: strings.Repeat("g", 300), api.AnnotationSignature: strings.Repeat("s", 84), "other": strings.Repeat("x", 8<<10),
		}))
	}
	for range b.N {
		kept := make([]any, 0, count)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for _, o := range objects {
			slimmed, err := slim(o.(*metav1.PartialObjectMetadata).DeepCopy())
			require.NoError(b, err)
			kept = append(kept, slimmed)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/count, "B/pod")
		runtime.KeepAlive(kept)
	}
}
