//go:build root

package docker_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// daemonRestarts: with live-restore, containers outlive their daemon, however it ends.
func daemonRestarts(t *testing.T, d docker) {
	ctx := context.Background()
	stays := d.start(t, share(5000, 20), workload("hold"), "--mib=100")
	goes := d.start(t, share(6000, 20), workload("hold"), "--mib=100")
	d.waitReady(t, stays)
	for i, end := range []func(){func() { require.NoError(t, d.Stop()) }, d.Kill} {
		end()
		s, err := d.m.Status(ctx)
		require.NoError(t, err)
		require.Len(t, s.Containers, 2-i)
		require.NoError(t, d.Start(ctx))
		requireSees(t, d.exec(t, stays, workload("meminfo")), 5000)
		// Those that are there are known to those that come.
		d.requireRefused(t, share(139000, 50)...)
		if i == 0 {
			d.remove(t, goes)
		}
		requireReserved(t, d.m, 5000, 1)
	}
}

// at is how many containers manyAtOnce starts together, each with perContainer MiB.
const (
	at           = 32
	perContainer = 20000
	fit          = 143771 / perContainer
)

// manyAtOnce: of many that want more than there is, as many as fit get their share.
func manyAtOnce(t *testing.T, d docker) {
	ctx := context.Background()
	var (
		mu      sync.Mutex
		ids     []string
		refused int
		wg      sync.WaitGroup
	)
	for range at {
		wg.Go(func() {
			args := append([]string{"--detach"}, share(perContainer, 10)...)
			out, err := d.Docker(ctx, sliced(append(args, harness.WorkloadImage)...)...)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				refused++
				assert.ErrorContains(t, err, "gpuslice: ")
				return
			}
			ids = append(ids, strings.TrimSpace(out))
		})
	}
	wg.Wait()
	require.Len(t, ids, fit, "%d refused", refused)
	requireReserved(t, d.m, fit*perContainer, fit)
	for _, id := range ids {
		spec, err := d.Spec(id)
		require.NoError(t, err)
		limited, err := harness.LimitedOrNone(spec, d.m.StateDir())
		require.NoError(t, err)
		require.True(t, limited)
	}
	// Containers start and end, all at once. The reservations never exceed the GPU.
	for range at {
		wg.Go(func() {
			args := append([]string{"--rm"}, share(perContainer/10, 1)...)
			out, err := d.Docker(ctx, sliced(append(args, harness.WorkloadImage, workload("meminfo"))...)...)
			if err != nil {
				assert.ErrorContains(t, err, "gpuslice: ")
				return
			}
			assert.Equal(t, fmt.Sprint(perContainer/10*mib), harness.KeyValues(out)["device.0.total_bytes"])
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for {
		s, err := d.m.Status(ctx)
		require.NoError(t, err)
		require.LessOrEqual(t, s.GPUs[0].GrantedMemoryMiB, s.GPUs[0].MemoryMiB)
		select {
		case <-done:
			return
		default:
		}
	}
}
