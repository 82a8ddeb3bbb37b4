package periodic

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		wake := make(chan struct{}, 1)
		var at []time.Duration
		Every(ctx, time.Second, wake, func() {
			at = append(at, time.Since(began))
			switch len(at) {
			case 2:
				wake <- struct{}{}
			case 4:
				cancel()
			}
		})
		require.Equal(t, []time.Duration{time.Second, 2 * time.Second, 2 * time.Second, 3 * time.Second}, at)
	})
}

func TestVary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		wake := make(chan struct{}, 1)
		var at []time.Duration
		Vary(ctx, wake, func() time.Duration {
			at = append(at, time.Since(began))
			switch len(at) {
			case 2:
				wake <- struct{}{}
			case 4:
				cancel()
			}
			return time.Duration(len(at)) * time.Second
		})
		require.Equal(t, []time.Duration{0, time.Second, time.Second, 4 * time.Second}, at)
	})
}
