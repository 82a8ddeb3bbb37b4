package nriplugin_test

import (
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
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
