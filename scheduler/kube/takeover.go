package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

	mu   sync.Mutex
	done fence.Term
}

const (
	touchesAtOnce = 32
	seenInterval  = 5 * time.Millisecond
	// takeoverTimeout is less than kube-scheduler's httpTimeout.
	takeoverTimeout = 20 * time.Second
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
	t.done = term
	t.Log.Info("leading: writes of earlier leaders fail now", "term", term.String(), "pods", touched, "took", time.Since(began).Round(time.Millisecond))
	return term, nil
}

var errNothingSeen = errors.New("no pod requests GPUs or is resized: there is nothing to do")

func (t *Takeover) begin(ctx context.Context, term fence.Term) (int, error) {
	if err := term.Confirm(ctx); err != nil {
		return 0, err
	}
	pods, err := t.pending(ctx)
	if err != nil {
		return 0, err
	}
	touched, seen := map[types.UID]bool{}, false
	// What is resized is known from the informer, which is up to date only after the first turn.
	for pods = append(pods, t.resized(touched)...); len(pods) > 0; pods = t.resized(touched) {
		any, err := t.touch(ctx, term, pods)
		if err != nil {
			return 0, err
		}
		seen = seen || any
		for _, p := range pods {
			touched[p.UID] = true
		}
	}
	if !seen { // without an event, it is unknown how old the informer's state is
		return 0, errNothingSeen
	}
	t.Forget()
	t.Feed.resync()
	return len(touched), term.Check()
}

// resized returns the bound pods that are resized, but those that are known.
func (t *Takeover) resized(known map[types.UID]bool) (resized []*v1.Pod) {
	pods, _ := t.Feed.pods.List(labels.Everything()) // listers of caches return no errors
	for _, p := range pods {
		if _, asked := p.Annotations[api.AnnotationResize]; asked && p.Spec.NodeName != "" && !known[p.UID] {
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
		if is && p.Spec.NodeName == "" && p.DeletionTimestamp == nil && !ended(p) && t.RequestsGPUs(p) {
			pods = append(pods, p)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list pending pods: %w", err)
	}
	return pods, nil
}

// touch changes the pods, and returns when the informer has the changes. seen is false if all of the pods are gone.
func (t *Takeover) touch(ctx context.Context, term fence.Term, pods []*v1.Pod) (seen bool, err error) {
	touched := make([]*v1.Pod, len(pods))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(touchesAtOnce)
	for i, p := range pods {
		g.Go(func() error {
			now, err := patch(gctx, t.Client, p, map[string]any{"annotations": map[string]any{api.AnnotationLeader: term.String()}})
			if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
				return nil // it was deleted, and may have been created again
			}
			if err != nil {
				return fmt.Errorf("change pod %s/%s: %w", p.Namespace, p.Name, err)
			}
			touched[i] = now
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return false, err
	}
	for _, p := range touched {
		for p != nil {
			found, err := t.Feed.pods.Pods(p.Namespace).Get(p.Name)
			if err == nil && (found.UID != p.UID || !older(found, p)) {
				seen = true
				break
			}
			if apierrors.IsNotFound(err) {
				// Deleted, or not yet created in the informer.
				now, err := t.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
				if apierrors.IsNotFound(err) || err == nil && now.UID != p.UID {
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
