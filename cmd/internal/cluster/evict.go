package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

type Evictions struct {
	// GracePeriod is rounded up to seconds. Negative: the pods' own.
	GracePeriod time.Duration
	Report      func(format string, args ...any)
	pause       time.Duration // in tests
}

const (
	retryPause = 5 * time.Second
	// tryTimeout includes client-go's own wait for Retry-After.
	tryTimeout = 15 * time.Second
)

// Evict evicts pods by the API server, respecting PodDisruptionBudgets, and waits until they are gone or ctx ends.
// It retries pods that a budget delays. The error names all pods that remain.
func (c *Cluster) Evict(ctx context.Context, holders []Holder, how Evictions) error {
	if how.pause == 0 {
		how.pause = retryPause
	}
	var errs []error
	var evicted []Holder
	delayed := map[Holder]error{}
	fail := func(h Holder, err error) { errs = append(errs, fmt.Errorf("evict pod %s: %w", h, err)) }
	for left := holders; ; {
		var again []Holder
		for _, h := range left {
			later, err := c.evict(ctx, h, how)
			switch {
			case err == nil:
				evicted = append(evicted, h)
			case later:
				if delayed[h] == nil {
					how.Report("pod %s cannot be evicted yet: %v", h, err)
				}
				delayed[h] = err
				again = append(again, h)
			case ctx.Err() != nil && delayed[h] != nil:
				fail(h, delayed[h])
			default:
				fail(h, err)
			}
		}
		left = again
		if len(left) > 0 && sleep(ctx, how.pause) {
			continue
		}
		for _, h := range left {
			fail(h, delayed[h])
		}
		return errors.Join(append(errs, c.waitGone(ctx, evicted, how))...)
	}
}

func (c *Cluster) evict(ctx context.Context, h Holder, how Evictions) (later bool, err error) {
	uid := types.UID(h.UID)
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: h.Namespace, Name: h.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}},
	}
	if how.GracePeriod >= 0 {
		seconds := int64((how.GracePeriod + time.Second - 1) / time.Second)
		eviction.DeleteOptions.GracePeriodSeconds = &seconds
	}
	try, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	err = c.client.PolicyV1().Evictions(h.Namespace).Evict(try, eviction)
	switch {
	case err == nil:
		how.Report("pod %s is evicted", h)
		return false, nil
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err): // a new pod with this name
		return false, nil
	}
	return apierrors.IsTooManyRequests(err) || try.Err() != nil && ctx.Err() == nil, err
}

// waitGone checks the pods at least once, also after ctx has ended.
func (c *Cluster) waitGone(ctx context.Context, holders []Holder, how Evictions) error {
	_ = wait.PollUntilContextCancel(ctx, pollInterval, true, func(context.Context) (bool, error) {
		look, cancel := context.WithTimeout(context.WithoutCancel(ctx), responseTimeout)
		defer cancel()
		holders = slices.DeleteFunc(holders, func(h Holder) bool {
			pod, err := c.client.CoreV1().Pods(h.Namespace).Get(look, h.Name, metav1.GetOptions{})
			gone := apierrors.IsNotFound(err) || err == nil &&
				(string(pod.UID) != h.UID || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed)
			if gone {
				how.Report("pod %s is gone", h)
			}
			return gone
		})
		return len(holders) == 0, nil
	})
	var errs []error
	for _, h := range holders {
		errs = append(errs, fmt.Errorf("pod %s is evicted but not gone: use a longer --timeout", h))
	}
	return errors.Join(errs...)
}

func sleep(ctx context.Context, pause time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}
