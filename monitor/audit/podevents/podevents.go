// Package podevents creates events of pods for violations: only these need client-go.
package podevents

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/gpuslice/gpuslice/monitor/audit"
)

const Component = "gpuslice-agent"

// So many events of a pod at once, then one per interval: tenants can cause violations continuously.
const (
	burst = 10
	every = time.Minute
	// longest is the API server's limit of a message.
	longest = 1024
)

// Recorder is an audit.Events. It counts equal events, and retries before it drops one.
type Recorder struct {
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorderLogger
	sink        record.EventSink
}

// New returns a recorder. It calls the API server in Run.
func New(config *rest.Config, node string, log *slog.Logger) (*Recorder, error) {
	config = rest.CopyConfig(config)
	config.Timeout = 10 * time.Second
	config.QPS, config.Burst = 2, 10
	config.WarningHandler = rest.NoWarnings{}
	client, err := typed.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client for events: %w", err)
	}
	ctx := klog.NewContext(context.Background(), logr.FromSlogHandler(log.Handler()))
	b := record.NewBroadcaster(record.WithContext(ctx), record.WithCorrelatorOptions(record.CorrelatorOptions{
		BurstSize: burst, QPS: float32(1 / every.Seconds()),
	}))
	return &Recorder{
		broadcaster: b,
		recorder:    b.NewRecorder(nil, corev1.EventSource{Component: Component, Host: node}).WithLogger(klog.FromContext(ctx)),
		sink:        &typed.EventSinkImpl{Interface: client.Events("")},
	}, nil
}

// Run sends events until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	r.broadcaster.StartRecordingToSink(r.sink)
	<-ctx.Done()
	r.broadcaster.Shutdown()
}

func (r *Recorder) Warn(c audit.Container, reason, message string) {
	if len(message) > longest {
		message = strings.ToValidUTF8(message[:longest-len("…")], "") + "…"
	}
	of := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: c.Namespace, Name: c.Pod, UID: types.UID(c.PodUID)}
	if c.Name != "" {
		of.FieldPath = fmt.Sprintf("spec.containers{%s}", c.Name)
	}
	r.recorder.Event(of, corev1.EventTypeWarning, reason, message)
}
