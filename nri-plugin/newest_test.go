package nriplugin_test

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/test/granttest"
)

// writesLimits has the plugin write limits as the agent does.
func writesLimits(c *nriplugin.Config) {
	settings := c.Settings()
	c.Populate = func(dir string, claim ledger.Claim) error { return oci.Populate(dir, claim, settings) }
}

// A container that restarts in a pod that was resized gets what was granted last, whatever
// its sandbox was made with; and what is not signed is not granted in this way either.
func TestNewestGrant(t *testing.T) {
	signed := signedFor(t, "first", "p", "main", gpuA, 3000, 20)
	forged := maps.Clone(signed)
	forged[api.AnnotationGrant] = strings.Replace(forged[api.AnnotationGrant], "3000", "9000", 1)
	newest := signed
	f := newFixture(t, func(c *nriplugin.Config) {
		writesLimits(c)
		c.Keys = granttest.Keyring("first")
		c.Newest = func(pod grant.Pod) grant.Pod {
			if pod.Name == "p" {
				pod.Annotations = newest
			}
			return pod
		}
	})
	sandbox := newPod("p", signedFor(t, "first", "p", "main", gpuA, 1000, 10))
	ctr := newContainer("main")
	_, err := f.runtime.create(sandbox, ctr)
	require.NoError(t, err)
	shares, err := oci.RecoverShares(f.ledger.Dir(ctr.Id))
	require.NoError(t, err)
	require.Equal(t, []grant.Share{{UUID: gpuA, MemoryMiB: 3000, CorePercent: 20}}, shares)

	newest = forged
	_, err = f.runtime.create(sandbox, newContainer("main"))
	require.ErrorContains(t, err, "not for this grant")
}

// The program that resized a container was killed between the ledger and the limits: the agent that starts
// brings the limits to what is reserved.
func TestLimitsBehindTheLedgerAreFixed(t *testing.T) {
	f := newFixture(t, writesLimits)
	ctr := newContainer("main")
	_, err := f.runtime.create(newPod("p", named("main", gpuA, 3000, 20)), ctr)
	require.NoError(t, err)
	dir := f.ledger.Dir(ctr.Id)
	path := limiter.LimitsPath(dir)
	limits, err := limiter.ReadLimits(path)
	require.NoError(t, err)
	whole := limits.Devices[0]
	limits.Devices[0].MemoryLimitBytes, limits.Devices[0].CorePercent = 1000<<20, 10
	require.NoError(t, limiter.UpdateLimits(dir, limits))

	f.stop()
	f.start()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		limits, err = limiter.ReadLimits(path)
		assert.NoError(c, err)
		assert.Equal(c, whole, limits.Devices[0])
	}, 10*time.Second, time.Millisecond)
	snapshot, err := f.ledger.Snapshot(context.Background())
	require.NoError(t, err)
	require.Equal(t, int64(3000), snapshot.Claims()[0].Shares[0].MemoryMiB)
}
