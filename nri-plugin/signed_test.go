package nriplugin_test

import (
	"context"
	"maps"
	"os"
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

// signedFor is our annotation for one container, signed with the key of a seed for a pod of newPod.
func signedFor(t testing.TB, seed, pod, container, uuid string, memoryMiB, cores int) map[string]string {
	annotations := named(container, uuid, memoryMiB, cores)
	signature, err := granttest.SigningKey(seed).Sign(newPod(pod, nil).GetUid(), nodeName, annotations[api.AnnotationGrant])
	require.NoError(t, err)
	annotations[api.AnnotationSignature] = signature
	return annotations
}

func TestSignedGrants(t *testing.T) {
	f := newFixture(t, func(c *nriplugin.Config) { c.Keys = granttest.Keyring("first") })
	signed := signedFor(t, "first", "p", "main", gpuA, 1000, 10)
	changed := maps.Clone(signed)
	changed[api.AnnotationGrant] = strings.Replace(changed[api.AnnotationGrant], "1000", "9000", 1)
	for _, test := range []struct {
		description, pod, container string
		annotations                 map[string]string
		want                        string
	}{
		{"not signed", "p", "main", named("main", gpuA, 1000, 10), "signed grants only"},
		{"changed", "p", "main", changed, "not for this grant"},
		{"copied to another pod", "thief", "main", signed, "not for this grant"},
		{"signed with another key", "p", "main", signedFor(t, "second", "p", "main", gpuA, 1000, 10), "does not have"},
		{"another container of such a pod", "p", "side", changed, "not for this grant"},
		{"HAMi's annotation", "p", "main", hami(gpuA, 1000, 10), "HAMi's annotations can't be signed"},
	} {
		t.Run(test.description, func(t *testing.T) {
			_, err := f.runtime.create(newPod(test.pod, test.annotations), newContainer(test.container))
			require.ErrorContains(t, err, test.want)
			require.ErrorContains(t, err, "default/"+test.pod)
			require.ErrorContains(t, err, `"`+test.container+`"`)
			require.Empty(t, f.dirs())
		})
	}

	ctr := newContainer("main")
	spec, err := f.runtime.create(newPod("p", signed), ctr)
	require.NoError(t, err)
	require.Contains(t, gpuNodes(spec), "/dev/nvidia0")
	spec, err = f.runtime.create(newPod("p", signed), newContainer("side", "NVIDIA_VISIBLE_DEVICES=all"))
	require.NoError(t, err, "the grant is good and has nothing for this one")
	require.Empty(t, gpuNodes(spec))
	spec, err = f.runtime.create(newPod("none", nil), newContainer("main", "NVIDIA_VISIBLE_DEVICES=all"))
	require.NoError(t, err, "no grant needs no signature")
	require.Empty(t, gpuNodes(spec))
	require.Equal(t, []string{ctr.Id}, f.claims())
	require.Equal(t, 1, f.runtime.proxy.connections(), "a refusal must not cost the connection")
}

// Without keys a signature is not looked at: the scheduler may sign before the nodes
// have its key.
func TestSignatureWithoutKeys(t *testing.T) {
	f := newFixture(t)
	annotations := named("main", gpuA, 1000, 10)
	annotations[api.AnnotationSignature] = "ignored"
	_, err := f.runtime.create(newPod("p", annotations), newContainer("main"))
	require.NoError(t, err)
}

// What runs was accepted by the keys of its day. A node that gets keys, or other
// keys, and loses its state directory too, still knows what is taken.
func TestKeysDoNotLoseWhatRuns(t *testing.T) {
	for _, test := range []struct {
		description string
		before      grant.Verifier
		annotations map[string]string
	}{
		{"named, from before there were keys", nil, named("main", gpuA, 50000, 50)},
		{"HAMi's, from before there were keys", nil, hami(gpuA, 50000, 50)},
		{"signed with a key that is gone", granttest.Keyring("second"), signedFor(t, "second", "p", "main", gpuA, 50000, 50)},
	} {
		t.Run(test.description, func(t *testing.T) {
			f := newFixture(t, func(c *nriplugin.Config) { c.Keys = test.before })
			pod, ctr := newPod("p", test.annotations), newContainer("main")
			_, err := f.runtime.create(pod, ctr)
			require.NoError(t, err)
			f.stop()
			require.NoError(t, os.RemoveAll(f.ledger.Dir(ctr.Id)))

			f.config.Keys = granttest.Keyring("first")
			f.start()
			require.Equal(t, []string{ctr.Id}, f.claims())
			second := signedFor(t, "first", "second", "main", gpuA, 50000, 50)
			_, err = f.runtime.create(newPod("second", second), newContainer("main"))
			require.ErrorContains(t, err, "31920 of 81920 MiB free", "what runs is not given away a second time")

			_, err = f.runtime.create(pod, newContainer("main"))
			require.Error(t, err, "its next attempt is a new container")
		})
	}
}

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
	recovered, err := oci.RecoverClaim(f.ledger.Dir(ctr.Id))
	require.NoError(t, err)
	require.Equal(t, []grant.Share{{UUID: gpuA, MemoryMiB: 3000, CorePercent: 20}}, recovered.Shares)

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
	}, time.Minute, time.Millisecond)
	snapshot, err := f.ledger.Snapshot(context.Background())
	require.NoError(t, err)
	require.Equal(t, int64(3000), snapshot.Claims()[0].Shares[0].MemoryMiB)
}
