//go:build root

package limiter_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/limiter/feedback"
)

// A kernel that does not end has more than its container's share, because nothing can interrupt it. The agent finds it in
// the turn files, and so does one look.
func TestHeldGPUIsReported(t *testing.T) {
	program := pace(t)
	state := newMachine(t, "H200")
	holder, a, b := sharing(t, state, "1", 10, limiter.PolicyDefault), sharing(t, state, "2", 40, limiter.PolicyDefault), sharing(t, state, "3", 30, limiter.PolicyDefault)
	c := sharing(t, state, "4", 20, limiter.PolicyDefault)
	n := takeTurns(t, holder, a, b, c)
	stateDir := t.TempDir()
	require.NoError(t, os.Symlink(n.dir, filepath.Join(stateDir, "turns")))
	peers := func(context.Context) (map[string]map[string]feedback.Peer, error) {
		of := map[string]feedback.Peer{}
		for _, c := range n.containers {
			words, err := limiter.ReadTurn(stateDir, gpuIDs[0], limiter.TurnID(c.turnID))
			if err != nil {
				return nil, err
			}
			of[c.group] = feedback.Peer{Turn: words}
		}
		return map[string]map[string]feedback.Peer{gpuIDs[0]: of}, nil
	}
	began := make(chan feedback.Hold, 1)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	look := feedback.NewHolds(feedback.HoldsConfig{Peers: peers, Began: func(h feedback.Hold) { began <- h }, Log: slog.New(slog.DiscardHandler)})
	a.start(t, program, forever, "async", "500")
	b.start(t, program, forever, "async", "500")
	c.start(t, program, forever, "async", "500")
	holder.start(t, program, forever, "sync", "3600000000")
	go look.Run(ctx)
	select {
	case h := <-began:
		assert.Equal(t, holder.group, h.Container)
		assert.Equal(t, gpuIDs[0], h.GPU)
		assert.NotEmpty(t, h.Waiting)
		assert.NotContains(t, h.Waiting, holder.group)
		t.Logf("reported %v after the kernel began", time.Since(h.Since))
	case <-time.After(waitLong):
		words, _ := peers(ctx)
		t.Fatalf("nothing is reported: %+v", words)
	}
	eventually(t, waitLong, "one look finds it", func() bool {
		words, err := peers(ctx)
		require.NoError(t, err)
		var now unix.Timespec
		require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
		found := feedback.HoldsNow(uint64(now.Nano()), time.Now(), words)
		return len(found) == 1 && found[0].Container == holder.group
	})
}
