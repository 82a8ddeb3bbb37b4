package podevents

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/gpuslice/gpuslice/monitor/audit"
)

// server is an API server that takes events.
type server struct {
	*httptest.Server
	events chan corev1.Event
	calls  chan string
}

func newServer(t *testing.T) *server {
	s := &server{events: make(chan corev1.Event, 1000), calls: make(chan string, 1000)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e corev1.Event
		data, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(data, &e); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(e)
		s.events <- e
		s.calls <- r.Method + " " + r.URL.Path
	}))
	t.Cleanup(s.Close)
	return s
}

// event warns until the pod's event comes: what is sent before the recorder runs, or while its queue is full, is dropped.
func (s *server) event(r *Recorder, c audit.Container, reason, message string) corev1.Event {
	for {
		r.Warn(c, reason, message)
		again := time.After(20 * time.Millisecond)
		for waiting := true; waiting; {
			select {
			case e := <-s.events:
				if e.InvolvedObject.Name == c.Pod {
					return e
				}
			case <-again:
				waiting = false
			}
		}
	}
}

func TestEvents(t *testing.T) {
	s := newServer(t)
	r, err := New(&rest.Config{Host: s.URL}, "node-1", slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })

	c := audit.Container{ID: "c1", Namespace: "ns", Pod: "p", PodUID: "u-1", Name: "main"}
	first := s.event(r, c, "GPULimiterMissing", "process 7 uses the driver")
	assert.Equal(t, "POST /api/v1/namespaces/ns/events", <-s.calls)
	assert.Equal(t, corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "ns", Name: "p", UID: "u-1", FieldPath: "spec.containers{main}"}, first.InvolvedObject)
	assert.Equal(t, corev1.EventSource{Component: Component, Host: "node-1"}, first.Source)
	assert.Equal(t, "Warning GPULimiterMissing process 7 uses the driver", first.Type+" "+first.Reason+" "+first.Message)
	assert.Equal(t, "ns", first.Namespace)

	// A long message is cut. Each pod has its own limit.
	other := audit.Container{ID: "c2", Namespace: "ns", Pod: "q", PodUID: "u-2"}
	e := s.event(r, other, "GPUMemoryOverLimit", strings.Repeat("ä", 5000))
	assert.LessOrEqual(t, len(e.Message), longest)
	assert.Empty(t, e.InvolvedObject.FieldPath)
	cancel()
	running.Wait()
	assert.LessOrEqual(t, len(s.events), burst, "one pod's don't flood the API server")
}

func TestNew(t *testing.T) {
	_, err := New(&rest.Config{Host: "http://%"}, "n", slog.New(slog.DiscardHandler))
	assert.ErrorContains(t, err, "kubernetes client for events")
}
