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

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// Reasons of the events that a Resizer makes on pods.
const (
	EventResized       = "GPUSliceResized"
	EventResizeRefused = "GPUSliceResizeRefused"
)

// ResizerConfig is what a Resizer needs.
type ResizerConfig struct {
	Engine *engine.Engine
	Client kubernetes.Interface
	// Ready is nil while this process decides: it knows the cluster, and leads.
	Ready func() error
	// Key signs grants; nil, nil: they are not signed.
	Key func() (*grant.SigningKey, error)
	// Ours says whether pods of a scheduler of that name are placed by this engine; nil: all are.
	Ours func(schedulerName string) bool
	// Event makes an event on the pod.
	Event func(pod *v1.Pod, kind, reason, message string)
	Log   *slog.Logger
}

// Resizer answers what people write on pods that run (grant.AnnotationResize): it has the
// engine check and book it, and writes the new grant, or why there is none.
//
// The request is a letter: in the write that answers it, it is taken off the pod, so that
// the same can be asked again. That write is of the version of the pod that was looked at;
// one that was changed meanwhile is looked at again.
type Resizer struct {
	ResizerConfig
	feeding *Feeding
	queue   workqueue.TypedRateLimitingInterface[cache.ObjectName]
}

// Resizer follows the pods of the informers that the sink is fed from.
func (f *Feeding) Resizer(factory informers.SharedInformerFactory, c ResizerConfig) (*Resizer, error) {
	r := &Resizer{c, f, workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](100*time.Millisecond, time.Minute))}
	add := func(p *v1.Pod) {
		if _, asked := p.Annotations[grant.AnnotationResize]; asked {
			r.queue.Add(cache.NewObjectName(p.Namespace, p.Name))
		}
	}
	handler := Handler[*v1.Pod]{Set: add, Replaced: func(_, p *v1.Pod) { add(p) }}
	if err := f.follow(factory.Core().V1().Pods().Informer(), handler); err != nil {
		return nil, fmt.Errorf("follow requests to resize pods: %w", err)
	}
	return r, nil
}

// notReadyPause is how long a request waits for a process to lead: not longer than people do.
const notReadyPause = time.Second

// Run answers until ctx ends.
func (r *Resizer) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, r.queue.ShutDown)()
	for {
		name, ended := r.queue.Get()
		if ended {
			return
		}
		if err := r.Ready(); err != nil {
			r.queue.AddAfter(name, notReadyPause)
		} else if err := r.answer(ctx, name); err != nil {
			r.Log.Warn("a request to resize a pod is not answered yet", "pod", name.String(), "error", err)
			r.queue.AddRateLimited(name)
		} else {
			r.queue.Forget(name)
		}
		r.queue.Done(name)
	}
}

// answer answers the pod's request, if it has one. An error is to be tried again.
func (r *Resizer) answer(ctx context.Context, name cache.ObjectName) error {
	object, err := r.feeding.pods.Pods(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if object.Spec.NodeName == "" || ended(object) || r.Ours != nil && !r.Ours(cmp.Or(object.Spec.SchedulerName, v1.DefaultSchedulerName)) {
		return nil // of one that waits, once it is bound
	}
	r.feeding.Pod(object) // the engine may not have come to it yet
	pod := Pod(object)
	request, asked := object.Annotations[grant.AnnotationResize]
	if !asked {
		r.Engine.CancelResize(pod) // of an earlier try, of which nothing has come
		return nil
	}
	status := grant.ResizeStatus{Request: request, Time: time.Now().UTC().Truncate(time.Second)}
	next, err := r.book(object, pod, request)
	if err != nil {
		status.Outcome, status.Message = grant.ResizeRefused, err.Error()
		if err := r.write(ctx, object, status, nil); err != nil {
			return err
		}
		r.Log.Info("resize refused", "pod", name.String(), "reason", status.Message)
		r.Event(object, v1.EventTypeWarning, EventResizeRefused, status.Message)
		return nil
	}
	status.Outcome, status.Message, status.Generation = grant.ResizeBooked, describe(pod, next), next.Generation
	annotations, err := r.annotations(pod, next)
	if err == nil {
		err = r.write(ctx, object, status, annotations)
	}
	if err != nil {
		// Where it may have been written, or the pod has changed, what is booked stays the higher
		// of both until it is looked at again.
		if surelyRefused(err) {
			r.Engine.CancelResize(pod)
		}
		return err
	}
	r.Log.Info("resized", "pod", name.String(), "shares", status.Message)
	r.Event(object, v1.EventTypeNormal, EventResized, status.Message)
	return nil
}

// book is what the pod is to have, booked. An error is why it is refused.
func (r *Resizer) book(object *v1.Pod, pod *scheduler.Pod, request string) (scheduler.Placement, error) {
	wanted, err := grant.DecodeResize(request)
	if err != nil {
		return scheduler.Placement{}, fmt.Errorf("annotation %s: %w", grant.AnnotationResize, err)
	}
	n, err := r.feeding.nodes.Get(object.Spec.NodeName)
	if err != nil || n.Annotations[wire.AnnotationGPUs] == "" {
		return scheduler.Placement{}, fmt.Errorf("no gpuslice-agent tells of node %s, and nobody else could change what a container of it has: is the agent running there?", object.Spec.NodeName)
	}
	return r.Engine.Resize(pod, wanted)
}

func (r *Resizer) annotations(pod *scheduler.Pod, next scheduler.Placement) (map[string]string, error) {
	key, err := r.Key()
	if err != nil {
		return nil, err
	}
	return wire.Resized(pod, next, key, time.Now())
}

// write takes the request off the pod and writes the answer, and the annotations with it, if
// the pod is as it was looked at. An answer of the API server that doesn't say whether it did
// is settled by asking again: of the same version of the pod it is done once at most.
func (r *Resizer) write(ctx context.Context, object *v1.Pod, status grant.ResizeStatus, annotations map[string]string) error {
	answer, err := json.Marshal(status)
	if err != nil {
		return err
	}
	set := map[string]any{grant.AnnotationResize: nil, grant.AnnotationResizeStatus: string(answer)}
	for key, value := range annotations {
		set[key] = value
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": object.UID, "resourceVersion": object.ResourceVersion, "annotations": set}})
	if err != nil {
		return err
	}
	pods := r.Client.CoreV1().Pods(object.Namespace)
	for tried := false; ; tried = true {
		_, err := pods.Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		switch {
		case err == nil:
			return nil
		case apierrors.IsConflict(err) && tried:
			found, looked := pods.Get(ctx, object.Name, metav1.GetOptions{})
			if looked == nil && found.UID == object.UID && found.Annotations[grant.AnnotationResizeStatus] == string(answer) {
				return nil // an earlier try, whose answer was lost
			}
			return errors.Join(err, looked)
		case apierrors.IsConflict(err) || surelyRefused(err) && !apierrors.IsTooManyRequests(err):
			return fmt.Errorf("write to pod %s/%s: %w", object.Namespace, object.Name, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("write to pod %s/%s: %w", object.Namespace, object.Name, err)
		case <-time.After(lookEvery):
		}
	}
}

// describe says what the containers have.
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
