package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/fence"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// Reasons of the Resizer's events.
const (
	EventResized       = "GPUSliceResized"
	EventResizeRefused = "GPUSliceResizeRefused"
)

const mostRetried = 1000 // the oldest

// SetPod passes a pod to the engine. It retries pending pods if a share became smaller: kube-scheduler has no
// event for it.
func SetPod(e *engine.Engine, p *scheduler.Pod, retry func(pending *v1.Pod)) {
	before := e.Resized()
	e.SetPod(p)
	if e.Resized() == before {
		return
	}
	for _, w := range e.PendingUnreserved(mostRetried) {
		retry(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name, UID: types.UID(w.UID)}})
	}
}

type ResizerConfig struct {
	Engine *engine.Engine
	Client kubernetes.Interface
	// Term returns an error unless this process is the leader and has read the cluster's state.
	Term func(context.Context) (fence.Term, error)
	Keys *grant.SigningKeyFile // nil: unsigned grants
	// Ours reports whether this engine schedules for that scheduler name; nil: for all.
	Ours  func(schedulerName string) bool
	Event func(pod *v1.Pod, kind, reason, message string)
	Log   *slog.Logger
}

// Resizer answers resize requests on running pods (api.AnnotationResize): it writes the new
// grant, or the reason for the refusal, and removes the request in the same write.
type Resizer struct {
	ResizerConfig
	feed  *Feed
	queue workqueue.TypedRateLimitingInterface[cache.ObjectName]
}

func (f *Feed) Resizer(factory informers.SharedInformerFactory, c ResizerConfig) (*Resizer, error) {
	r := &Resizer{c, f, workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](100*time.Millisecond, time.Minute))}
	add := func(p *v1.Pod) {
		if _, asked := p.Annotations[api.AnnotationResize]; asked {
			r.queue.Add(cache.NewObjectName(p.Namespace, p.Name))
		}
	}
	handler := Handler[*v1.Pod]{Set: add, Replaced: func(_, p *v1.Pod) { add(p) }}
	if err := f.follow(factory.Core().V1().Pods().Informer(), handler); err != nil {
		return nil, fmt.Errorf("watch resize requests: %w", err)
	}
	return r, nil
}

const notReadyPause = time.Second

// Run answers requests until ctx ends.
func (r *Resizer) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, r.queue.ShutDown)()
	for {
		name, ended := r.queue.Get()
		if ended {
			return
		}
		if term, err := r.Term(ctx); err != nil {
			r.queue.AddAfter(name, notReadyPause)
		} else if err := r.answer(ctx, term, name); err != nil {
			r.Log.Warn("failed to answer a resize request: retrying", "pod", name.String(), "error", err)
			r.queue.AddRateLimited(name)
		} else {
			r.queue.Forget(name)
		}
		r.queue.Done(name)
	}
}

// answer is called again after an error.
func (r *Resizer) answer(ctx context.Context, term fence.Term, name cache.ObjectName) error {
	object, err := r.feed.pods.Pods(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if object.Spec.NodeName == "" || convert.Ended(object) || r.Ours != nil && !r.Ours(cmp.Or(object.Spec.SchedulerName, v1.DefaultSchedulerName)) {
		return nil
	}
	r.feed.Pod(object) // the engine may have an older version
	pod := convert.Pod(object)
	request, asked := object.Annotations[api.AnnotationResize]
	if !asked {
		r.Engine.CancelResize(pod)
		return nil
	}
	status := grant.ResizeStatus{Request: request, Time: time.Now().UTC().Truncate(time.Second)}
	next, err := r.reserve(object, pod, request)
	if err != nil {
		status.Outcome, status.Message = grant.ResizeRefused, err.Error()
		if err := r.write(ctx, term, object, status, nil); err != nil {
			return err
		}
		r.Log.Info("resize refused", "pod", name.String(), "reason", status.Message)
		r.Event(object, v1.EventTypeWarning, EventResizeRefused, status.Message)
		return nil
	}
	status.Outcome, status.Message, status.Generation = grant.ResizeReserved, describe(pod, next), next.Generation
	annotations, err := wire.Resized(pod, next, r.Keys.Current(), time.Now())
	if err == nil {
		err = r.write(ctx, term, object, status, annotations)
	}
	if err != nil {
		// If the write may have succeeded, the larger of both shares stays reserved until the next
		// try.
		if unsent := new(notSent); rejected(err) || errors.As(err, &unsent) {
			r.Engine.CancelResize(pod)
		}
		return err
	}
	r.Log.Info("resized", "pod", name.String(), "shares", status.Message)
	r.Event(object, v1.EventTypeNormal, EventResized, status.Message)
	return nil
}

// reserve returns the reason for a refusal as an error.
func (r *Resizer) reserve(object *v1.Pod, pod *scheduler.Pod, request string) (scheduler.Placement, error) {
	wanted, err := grant.DecodeResize(request)
	if err != nil {
		return scheduler.Placement{}, fmt.Errorf("annotation %s: %w", api.AnnotationResize, err)
	}
	n, err := r.feed.nodes.Get(object.Spec.NodeName)
	if err != nil || n.Annotations[api.AnnotationNodeGPUs] == "" {
		return scheduler.Placement{}, fmt.Errorf("node %s has no GPUs registered by gpuslice-agent, which applies the "+
			"change: check that the agent runs there", object.Spec.NodeName)
	}
	return r.Engine.Resize(pod, wanted)
}

// write succeeds at most once, because of the resourceVersion. So it can retry if the answer is
// lost.
func (r *Resizer) write(ctx context.Context, term fence.Term, object *v1.Pod, status grant.ResizeStatus, annotations map[string]string) error {
	answer, err := json.Marshal(status)
	if err != nil {
		return err
	}
	set := map[string]any{api.AnnotationResize: nil, api.AnnotationResizeStatus: string(answer)}
	for key, value := range marked(term, annotations) {
		set[key] = value
	}
	for tried := false; ; tried = true {
		err := term.Check()
		if err != nil && !tried {
			return &notSent{err}
		} else if err != nil {
			return err
		}
		_, err = patch(ctx, r.Client, object, map[string]any{"resourceVersion": object.ResourceVersion, "annotations": set})
		switch {
		case err == nil:
			return nil
		case apierrors.IsConflict(err) && tried:
			found, err2 := r.Client.CoreV1().Pods(object.Namespace).Get(ctx, object.Name, metav1.GetOptions{})
			if err2 == nil && found.UID == object.UID && found.Annotations[api.AnnotationResizeStatus] == string(answer) {
				return nil
			}
			return errors.Join(err, err2)
		case apierrors.IsConflict(err) || rejected(err) && !apierrors.IsTooManyRequests(err):
			return fmt.Errorf("annotate pod %s/%s: %w", object.Namespace, object.Name, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("annotate pod %s/%s: %w", object.Namespace, object.Name, err)
		case <-time.After(retryInterval):
		}
	}
}

// notSent: the API server changed nothing.
type notSent struct{ error }

func describe(pod *scheduler.Pod, p scheduler.Placement) string {
	var parts []string
	for i, shares := range p.Containers {
		for _, s := range shares {
			cores := "cores not limited"
			if s.CorePercent > 0 {
				cores = fmt.Sprintf("%d percent of cores", s.CorePercent)
			}
			parts = append(parts, fmt.Sprintf("%s: %d MiB, %s of %s", pod.Containers[i].Name, s.MemoryMiB, cores, s.UUID))
		}
	}
	return strings.Join(parts, "; ")
}
