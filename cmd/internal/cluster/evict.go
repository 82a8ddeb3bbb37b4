package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Evictions say how pods are evicted.
type Evictions struct {
	// GracePeriod is the pods' own where it is negative. The API server counts in seconds: what is
	// begun of one is one, for none at all is a kill.
	GracePeriod time.Duration
	// Say is told of what happens.
	Say func(format string, args ...any)
	// pause is evictPause, but for tests.
	pause time.Duration
}

const (
	// evictPause is how long budgets that allow no eviction are given.
	evictPause = 5 * time.Second
	// evictPatience is for one try: client-go waits by itself where the API server names a time,
	// and other pods wait meanwhile.
	evictPatience = 15 * time.Second
)

// Evict evicts the pods by the API server's eviction, which keeps PodDisruptionBudgets, and waits until
// they are gone, or ctx ends. A pod whose budget allows no eviction keeps no other from being evicted:
// it is tried again. The error names all that are left.
func (c *Cluster) Evict(ctx context.Context, holders []Holder, how Evictions) error {
	if how.pause == 0 {
		how.pause = evictPause
	}
	var errs []error
	var evicted []Holder
	delayed := map[Holder]error{} // what a budget's last word was
	for left := holders; ; {
		var again []Holder
		for _, h := range left {
			later, err := c.evict(ctx, h, how)
			switch {
			case err == nil:
				evicted = append(evicted, h)
			case later:
				if delayed[h] == nil {
					how.Say("pod %s can't be evicted yet: %v", h, err)
				}
				delayed[h] = err
				again = append(again, h)
			case ctx.Err() != nil && delayed[h] != nil:
				errs = append(errs, fmt.Errorf("evict pod %s: %w", h, delayed[h]))
			default:
				errs = append(errs, fmt.Errorf("evict pod %s: %w", h, err))
			}
		}
		left = again
		if len(left) > 0 && sleep(ctx, how.pause) {
			continue
		}
		for _, h := range left {
			errs = append(errs, fmt.Errorf("evict pod %s: %w", h, delayed[h]))
		}
		return errors.Join(append(errs, c.gone(ctx, evicted, how))...)
	}
}

// evict tries it once, and says of an error whether it may be none later.
func (c *Cluster) evict(ctx context.Context, h Holder, how Evictions) (later bool, err error) {
	uid := types.UID(h.UID)
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: h.Namespace, Name: h.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}},
	}
	if how.GracePeriod >= 0 {
		seconds := int64(how.GracePeriod / time.Second)
		if how.GracePeriod%time.Second > 0 {
			seconds++
		}
		eviction.DeleteOptions.GracePeriodSeconds = &seconds
	}
	try, cancel := context.WithTimeout(ctx, evictPatience)
	defer cancel()
	err = c.client.PolicyV1().Evictions(h.Namespace).Evict(try, eviction)
	switch {
	case err == nil:
		how.Say("pod %s is evicted", h)
		return false, nil
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err): // another pod of its name
		return false, nil
	}
	return apierrors.IsTooManyRequests(err) || try.Err() != nil && ctx.Err() == nil, err
}

// gone waits until the pods are gone, or have ended.
func (c *Cluster) gone(ctx context.Context, holders []Holder, how Evictions) error {
	for {
		left := c.stillThere(ctx, holders, how)
		if len(left) == 0 {
			return nil
		}
		if sleep(ctx, lookEvery) {
			holders = left
			continue
		}
		var errs []error
		for _, h := range left {
			errs = append(errs, fmt.Errorf("pod %s is evicted and still there", h))
		}
		return errors.Join(errs...)
	}
}

// stillThere looks once at each of the pods, also when ctx has ended: what has become of them is told.
func (c *Cluster) stillThere(ctx context.Context, holders []Holder, how Evictions) (left []Holder) {
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	for _, h := range holders {
		pod, err := c.client.CoreV1().Pods(h.Namespace).Get(look, h.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && string(pod.UID) != h.UID,
			err == nil && (pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed):
			how.Say("pod %s is gone", h)
		default:
			left = append(left, h)
		}
	}
	return left
}

// sleep waits, and says whether ctx lasts.
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
