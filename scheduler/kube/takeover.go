package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/fence"
)

// Takeover begins a term before its first placement. Writes of earlier leaders may still be under way, and this process may
// not have seen those that have arrived. So it changes every pending pod that requests GPUs, and every pod that is resized:
// what is under way fails at its resourceVersion, whatever the API server's policies know. Then it waits until the informer
// has these changes, and so everything before them.
type Takeover struct {
	Fence  *fence.Fence // nil: there is no election, and nothing to take over
	Client kubernetes.Interface
	Feed   *Feed
	// RequestsGPUs is also true if the request is invalid.
	RequestsGPUs func(*v1.Pod) bool
	// Forget removes what was reserved in earlier terms.
	Forget func()
	Log    *slog.Logger

	mu    sync.Mutex
	done  fence.Term
	tried progress
}

// progress is what was done for a term that has not begun: one try may be too short for all pods.
type progress struct {
	term fence.Term
	// changed has the pods as the API server answered; nil: the pod is gone.
	changed map[types.UID]*v1.Pod
	failed  map[types.UID]int // tries
	refused map[types.UID]bool
}

const (
	touchesAtOnce = 32
	seenInterval  = 5 * time.Millisecond
	// takeoverTimeout is less than kube-scheduler's httpTimeout.
	takeoverTimeout = 20 * time.Second
	// mostTouches is how often a pod is tried that the API server lets nothing change, if it changes others.
	mostTouches = 3
)

// Term returns the current term, after it has begun. It is cheap but for the first call.
func (t *Takeover) Term(ctx context.Context) (fence.Term, error) {
	term, err := t.Fence.Term()
	if err != nil || term == (fence.Term{}) {
		return term, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done == term {
		return term, nil
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, takeoverTimeout)
	defer cancel()
	touched, err := t.begin(ctx, term)
	if err != nil {
		return term, fmt.Errorf("take over from the last leader: %w", err)
	}
	t.done, t.tried = term, progress{}
	t.Log.Info("leading: writes of earlier leaders fail now", "term", term.String(), "pods", touched, "took", time.Since(began).Round(time.Millisecond))
	return term, nil
}

var errNothingSeen = errors.New("no pod requests GPUs or is resized: there is nothing to do")

func (t *Takeover) begin(ctx context.Context, term fence.Term) (int, error) {
	if err := term.Confirm(ctx); err != nil {
		return 0, err
	}
	if t.tried.term != term {
		t.tried = progress{term, map[types.UID]*v1.Pod{}, map[types.UID]int{}, map[types.UID]bool{}}
	}
	pods, err := t.pending(ctx)
	if err != nil {
		return 0, err
	}
	seen := false
	// What is resized is known from the informer, which is up to date only after the first turn.
	for pods = t.tried.rest(append(pods, t.resized()...)); ; {
		if err := t.touch(ctx, pods); err != nil {
			return 0, err
		}
		if seen, err = t.wait(ctx); err != nil {
			return 0, err
		}
		if pods = t.tried.rest(t.resized()); len(pods) == 0 {
			break
		}
	}
	if !seen { // without an event, it is unknown how old the informer's state is
		return 0, errNothingSeen
	}
	t.Forget()
	t.Feed.resync()
	return len(t.tried.changed), term.Check()
}

// rest returns the pods that were not changed yet.
func (p *progress) rest(pods []*v1.Pod) []*v1.Pod {
	return slices.DeleteFunc(pods, func(pod *v1.Pod) bool { _, known := p.changed[pod.UID]; return known })
}

// resized returns the bound pods that are resized.
func (t *Takeover) resized() (resized []*v1.Pod) {
	pods, _ := t.Feed.pods.List(labels.Everything()) // listers of caches return no errors
	for _, p := range pods {
		if _, asked := p.Annotations[api.AnnotationResize]; asked && p.Spec.NodeName != "" {
			resized = append(resized, p)
		}
	}
	return resized
}

// pending asks the API server, because the informer may be behind.
func (t *Takeover) pending(ctx context.Context) (pods []*v1.Pod, err error) {
	list := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return t.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
	})
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", "").String()}
	err = list.EachListItem(ctx, options, func(object runtime.Object) error {
		p, is := object.(*v1.Pod)
		if is && p.Spec.NodeName == "" && p.DeletionTimestamp == nil && !convert.Ended(p) && t.RequestsGPUs(p) {
			pods = append(pods, p)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list pending pods: %w", err)
	}
	return pods, nil
}

// touch changes the pods. An error of one does not stop the others.
func (t *Takeover) touch(ctx context.Context, pods []*v1.Pod) error {
	changed, errs := make([]*v1.Pod, len(pods)), make([]error, len(pods))
	var g errgroup.Group
	g.SetLimit(touchesAtOnce)
	for i, p := range pods {
		g.Go(func() error {
			now, err := patch(ctx, t.Client, p, map[string]any{"annotations": map[string]any{
				api.AnnotationLeader: t.tried.term.String(),
				// The leader may be there already: an extender was started again, or a tenant wrote it.
				api.AnnotationRequeued: time.Now().UTC().Format(time.RFC3339Nano),
			}})
			switch {
			case err == nil:
				changed[i] = now
			case !gone(err):
				errs[i] = err
			}
			return nil
		})
	}
	_ = g.Wait()
	for i, p := range pods {
		if errs[i] == nil {
			t.tried.changed[p.UID] = changed[i]
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("change %d pods: %w", len(pods), context.Cause(ctx))
	}
	var failed error
	for i, p := range pods {
		if errs[i] == nil {
			continue
		}
		err := fmt.Errorf("change pod %s/%s: %w", p.Namespace, p.Name, errs[i])
		if t.tried.failed[p.UID]++; t.tried.failed[p.UID] >= mostTouches && t.tried.changedAny() {
			err = t.leave(ctx, p, err)
		}
		failed = cmp.Or(failed, err)
	}
	return failed
}

// gone: the pod was deleted, and may have been created again.
func gone(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err)
}

func (p *progress) changedAny() bool {
	for uid, pod := range p.changed {
		if pod != nil && !p.refused[uid] {
			return true
		}
	}
	return false
}

// leave goes on without the change of a pod, so that no pod prevents the placement of all others. The pod is placed by a version
// that was read in this term. A Binding of an earlier leader that is under way for it may still arrive: the API server's policy and
// the node's ledger remain.
func (t *Takeover) leave(ctx context.Context, p *v1.Pod, why error) error {
	now, err := t.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && now.UID != p.UID:
		t.tried.changed[p.UID] = nil
		return nil
	case err != nil:
		return fmt.Errorf("%w; %w", why, err)
	}
	t.tried.changed[p.UID], t.tried.refused[p.UID] = now, true
	t.Log.Warn("a pod can't be changed to take over from the last leader: going on without it", "pod", p.Namespace+"/"+p.Name, "error", why)
	return nil
}

// wait returns when the informer has the changes. seen is false if all of the changed pods are gone.
func (t *Takeover) wait(ctx context.Context) (seen bool, err error) {
	for uid, p := range t.tried.changed {
		for p != nil {
			found, err := t.Feed.pods.Pods(p.Namespace).Get(p.Name)
			if err == nil && (found.UID != p.UID || !older(found, p)) {
				seen = seen || !t.tried.refused[uid]
				break
			}
			if apierrors.IsNotFound(err) {
				// Deleted or ended, or not yet created in the informer.
				now, err := t.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
				if apierrors.IsNotFound(err) || err == nil && (now.UID != p.UID || convert.Ended(now)) {
					break
				}
			}
			select {
			case <-ctx.Done():
				return seen, fmt.Errorf("wait for the change of pod %s/%s: %w", p.Namespace, p.Name, context.Cause(ctx))
			case <-time.After(seenInterval):
			}
		}
	}
	return seen, nil
}

// older compares resource versions, which Kubernetes guarantees to be numbers that grow (since 1.35).
func older(a, b *v1.Pod) bool {
	va, _ := strconv.ParseUint(a.ResourceVersion, 10, 64)
	vb, _ := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return va < vb
}

// resync passes every pod of the informer to the sink: the informer's handlers may be behind it.
func (f *Feed) resync() {
	pods, _ := f.pods.List(labels.Everything())
	for _, p := range pods {
		f.Pod(p)
	}
}
