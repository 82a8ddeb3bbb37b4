package podwatch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
)

// bound is an API server with a pod that waits for its admission at some times.
type bound struct {
	typed.PodInterface
	t       *testing.T
	began   time.Time
	waits   func(time.Duration) bool
	deleted bool
	fails   func(time.Duration) bool // nil: never
}

func (b *bound) List(_ context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	require.Equal(b.t, "spec.nodeName=n1,status.phase=Pending", o.FieldSelector)
	p, now := corev1.Pod{}, metav1.Now()
	if b.deleted {
		p.DeletionTimestamp = &now
	}
	if !b.waits(time.Since(b.began)) {
		p.Status.StartTime = &now
	}
	if b.fails != nil && b.fails(time.Since(b.began)) {
		return nil, errors.New("refused")
	}
	return &corev1.PodList{Items: []corev1.Pod{p}}, nil
}

func TestWaitForAdmission(t *testing.T) {
	always := func(time.Duration) bool { return true }
	for name, c := range map[string]struct {
		bound
		longest, takes time.Duration
	}{
		"none":           {bound{waits: func(time.Duration) bool { return false }}, time.Minute, time.Second},
		"a pod for 5 s":  {bound{waits: func(d time.Duration) bool { return d < 5*time.Second }}, time.Minute, 5800 * time.Millisecond},
		"another, later": {bound{waits: func(d time.Duration) bool { return d > 500*time.Millisecond && d < 2*time.Second }}, time.Minute, 2800 * time.Millisecond},
		"a pod for long": {bound{waits: always}, time.Minute, admissionMost},
		"it ends":        {bound{waits: always}, 3 * time.Second, 3 * time.Second},
		"a deleted pod":  {bound{waits: always, deleted: true}, time.Minute, time.Second},
		"no API server":  {bound{waits: always, fails: always}, time.Minute, time.Second},
		"it fails later": {bound{waits: always, fails: func(d time.Duration) bool { return d > time.Second }}, time.Minute, admissionMost},
		"it failed once": {bound{waits: func(d time.Duration) bool { return d <= time.Second }, fails: func(d time.Duration) bool { return d > time.Second && d < 2*time.Second }}, time.Minute, 2800 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.t, c.began = t, time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), c.longest)
				defer cancel()
				(&Admission{&c.bound, "n1"}).Wait(ctx)
				require.Equal(t, c.takes, time.Since(c.began))
			})
		})
	}
}

func TestWaitForAllAdmissions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		b := &bound{t: t, began: began, waits: func(d time.Duration) bool { return d < time.Hour }}
		(&Admission{b, "n1"}).WaitAll(t.Context())
		require.Equal(t, time.Hour+800*time.Millisecond, time.Since(began))
	})
}
