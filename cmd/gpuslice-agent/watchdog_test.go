package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestHealthFailsWhenALoopHangs(t *testing.T) {
	now := time.Unix(1000, 0)
	w := newWatchdog()
	w.now = func() time.Time { return now }
	cores, audit := w.loop("cores", 3*time.Second), w.loop("audit", time.Hour)
	now = now.Add(24 * time.Hour)
	assert.NoError(t, w.failure(), "no loop has started")

	cores.tick()
	audit.tick()
	now = now.Add(stuckAfter + 3*time.Second)
	assert.NoError(t, w.failure())
	now = now.Add(time.Second)
	assert.EqualError(t, w.failure(), `the loop "cores" has made no progress for 1m4s`)
	cores.tick()
	assert.NoError(t, w.failure())

	done := cores.waitForNVML()
	now = now.Add(stuckAfter * 2)
	assert.NoError(t, w.failure(), "the driver hangs, and a restart does not help")
	done()
	assert.NoError(t, w.failure())
	now = now.Add(stuckAfter * 2)
	assert.Error(t, w.failure())
}
