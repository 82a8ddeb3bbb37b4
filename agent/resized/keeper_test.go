package resized

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/test/granttest"
)

const gpu = "GPU-0a000000-1111-2222-3333-444455556666"

var (
	background = context.Background()
	gpus       = map[string]grant.GPU{gpu: {UUID: gpu, MemoryMiB: 10_000, CorePercent: 100, Replicas: 10}}
)

func share(mib int64, cores int) grant.Share {
	return grant.Share{UUID: gpu, MemoryMiB: mib, CorePercent: cores}
}

// podOf is a pod of the node "n" with the share for container "main".
func podOf(t *testing.T, uid string, generation int64, key *grant.SigningKey, s grant.Share) grant.Pod {
	t.Helper()
	value, err := grant.EncodeGrant(&grant.PodGrant{Node: "n", Generation: generation, Containers: map[string][]grant.Share{"main": {s}}})
	require.NoError(t, err)
	pod := grant.Pod{UID: uid, Namespace: "ns", Name: "p-" + uid, Annotations: map[string]string{api.AnnotationGrant: value, "other": "x"}}
	if key != nil {
		pod.Annotations[api.AnnotationSignature], err = key.Sign(uid, "n", value)
		require.NoError(t, err)
	}
	return pod
}

type node struct {
	*Keeper
	failed  []string
	applied map[string]grant.Share
}

func open(t *testing.T, dir string, keys grant.Verifier) *node {
	t.Helper()
	store, err := ledger.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { store.Close() })
	n := &node{applied: map[string]grant.Share{}}
	n.Keeper, err = Open(Config{
		StateDir: dir, NodeName: "n", Ledger: store, Keys: keys, Log: slog.New(slog.DiscardHandler),
		GPUs:   func() map[string]grant.GPU { return gpus },
		Apply:  func(_ string, c ledger.Claim) error { n.applied[c.ContainerID] = c.Shares[0]; return nil },
		Failed: func(c ledger.Claim, message string) { n.failed = append(n.failed, c.PodName+": "+message) },
	})
	require.NoError(t, err)
	return n
}

func (n *node) claim(t *testing.T, id, uid string, s grant.Share) {
	t.Helper()
	_, err := n.Ledger.Claim(background, ledger.Claim{ContainerID: id, Owner: ledger.OwnerNRI, PodUID: uid, PodNamespace: "ns", PodName: "p-" + uid,
		Container: "main", Shares: []grant.Share{s}, Source: grant.SourceNamed}, gpus, nil)
	require.NoError(t, err)
}

func (n *node) reserved(t *testing.T, id string) grant.Share {
	t.Helper()
	snapshot, err := n.Ledger.Snapshot(background)
	require.NoError(t, err)
	for _, c := range snapshot.Claims() {
		if c.ContainerID == id {
			return c.Shares[0]
		}
	}
	return grant.Share{}
}

func TestResizedPodGetsItsNewestGrant(t *testing.T) {
	dir := t.TempDir()
	n := open(t, dir, nil)
	first := podOf(t, "u1", 0, nil, share(1000, 10))
	n.claim(t, "c1", "u1", share(1000, 10))
	n.Set(first)
	assert.True(t, n.ApplyAll(background))
	assert.Equal(t, first, n.Newest(first), "one that was never resized")

	second := podOf(t, "u1", 1, nil, share(3000, 20))
	n.Set(second)
	assert.True(t, n.ApplyAll(background))
	assert.Equal(t, share(3000, 20), n.reserved(t, "c1"))
	assert.Equal(t, share(3000, 20), n.applied["c1"])

	// The container restarts: its sandbox has the first annotations.
	newest := n.Newest(first)
	assert.Equal(t, second.Annotations, newest.Annotations)
	assert.NotEqual(t, second.Annotations, first.Annotations, "what was asked is not changed")
	third := podOf(t, "u1", 2, nil, share(500, 5))
	assert.Equal(t, third, n.Newest(third), "a sandbox that was made later knows better")

	again := open(t, dir, nil)
	assert.Equal(t, second.Annotations, again.Newest(first).Annotations, "after a restart of the agent")
	again.Set(first)
	assert.Equal(t, second.Annotations, again.Newest(first).Annotations, "an older one that is written again is none")
	again.Set(third)
	assert.True(t, again.ApplyAll(background))
	assert.Equal(t, share(500, 5), again.reserved(t, "c1"))
	again.Set(second)
	assert.True(t, again.ApplyAll(background))
	assert.Equal(t, share(500, 5), again.reserved(t, "c1"))

	again.Gone("u1")
	assert.Equal(t, first, again.Newest(first))
	files, err := os.ReadDir(filepath.Join(dir, "resized"))
	require.NoError(t, err)
	assert.Empty(t, files)
}

// A container that was being created while its pod was resized has it a moment later.
func TestResizeThatComesBetween(t *testing.T) {
	n := open(t, t.TempDir(), nil)
	n.Set(podOf(t, "u1", 1, nil, share(3000, 20)))
	assert.True(t, n.ApplyAll(background))
	n.claim(t, "c1", "u1", share(1000, 10))
	assert.True(t, n.ApplyAll(background))
	assert.Equal(t, share(3000, 20), n.reserved(t, "c1"))
}

// A resize that does not fit yet is retried, and reported once.
func TestResizeThatHasToWait(t *testing.T) {
	n := open(t, t.TempDir(), nil)
	n.claim(t, "c1", "u1", share(1000, 10))
	n.claim(t, "c2", "u2", share(8000, 10))
	n.Set(podOf(t, "u1", 1, nil, share(5000, 10)))
	assert.False(t, n.ApplyAll(background))
	assert.False(t, n.ApplyAll(background))
	require.Len(t, n.failed, 1)
	assert.Contains(t, n.failed[0], "p-u1: resize container")
	n.Set(podOf(t, "u2", 1, nil, share(4000, 10)))
	n.ApplyAll(background)
	assert.True(t, n.ApplyAll(background), "the other one has given back")
	assert.Equal(t, share(5000, 10), n.reserved(t, "c1"))
}

func TestGrantsThatAreNotBelieved(t *testing.T) {
	key, stranger := granttest.SigningKey("key"), granttest.SigningKey("stranger")
	n := open(t, t.TempDir(), granttest.Keyring("key"))
	n.claim(t, "c1", "u1", share(1000, 10))
	unsigned := podOf(t, "u1", 1, nil, share(3000, 20))
	forged := podOf(t, "u1", 1, stranger, share(3000, 20))
	others := podOf(t, "u2", 1, key, share(3000, 20))
	others.UID = "u1"
	malformed := podOf(t, "u1", 1, key, share(3000, 20))
	malformed.Annotations[api.AnnotationGrant] += "x"
	for _, pod := range []grant.Pod{unsigned, forged, others, malformed} {
		n.Set(pod)
		assert.True(t, n.ApplyAll(background))
		assert.Equal(t, share(1000, 10), n.reserved(t, "c1"))
	}
	n.Set(podOf(t, "u1", 1, key, share(3000, 20)))
	assert.True(t, n.ApplyAll(background))
	assert.Equal(t, share(3000, 20), n.reserved(t, "c1"))

	hostile := podOf(t, "../x", 1, key, share(3000, 20))
	n.Set(hostile)
	assert.Equal(t, hostile, n.Newest(hostile))
}

// After a change of keys the scheduler, or a person, signs the same grant again.
func TestGrantThatIsSignedAgain(t *testing.T) {
	both, onlyNew := granttest.Keyring("new", "old"), granttest.Keyring("new")
	old, current, stranger := granttest.SigningKey("old"), granttest.SigningKey("new"), granttest.SigningKey("stranger")
	dir := t.TempDir()
	n := open(t, dir, both)
	first, second := podOf(t, "u1", 0, old, share(1000, 10)), podOf(t, "u1", 1, old, share(3000, 20))
	n.Set(second)
	assert.Equal(t, second.Annotations, n.Newest(first).Annotations)

	again := podOf(t, "u1", 1, current, share(3000, 20))
	n.Set(again)
	assert.Equal(t, again.Annotations, n.Newest(first).Annotations)
	unsigned := podOf(t, "u1", 1, nil, share(3000, 20))
	for _, pod := range []grant.Pod{unsigned, podOf(t, "u1", 1, stranger, share(3000, 20))} {
		n.Set(pod)
		assert.Equal(t, again.Annotations, n.Newest(first).Annotations, "an annotation that is rejected removes nothing")
	}

	n = open(t, dir, onlyNew) // the old key is gone, and the agent has restarted
	for _, sandbox := range []grant.Pod{first, second, again} {
		newest := n.Newest(sandbox)
		assert.Equal(t, again.Annotations, newest.Annotations)
		assert.NoError(t, onlyNew.Verify("u1", "n", newest.Annotations[api.AnnotationGrant], newest.Annotations[api.AnnotationSignature]))
	}
}

func TestPodsThatWentMeanwhile(t *testing.T) {
	dir := t.TempDir()
	n := open(t, dir, nil)
	for _, uid := range []string{"u1", "u2"} {
		n.Set(podOf(t, uid, 1, nil, share(3000, 20)))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "resized", ".new-u1.json.123"), nil, 0o600))
	again := open(t, dir, nil)
	again.Listed(map[string]bool{"u2": true})
	first := podOf(t, "u1", 0, nil, share(1000, 10))
	assert.Equal(t, first, again.Newest(first))
	files, err := os.ReadDir(filepath.Join(dir, "resized"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	assert.Equal(t, "u2.json", files[0].Name())

	require.NoError(t, os.WriteFile(filepath.Join(dir, "resized", "u2.json"), []byte("{"), 0o600))
	damaged := open(t, dir, nil)
	second := podOf(t, "u2", 0, nil, share(1000, 10))
	assert.Equal(t, second, damaged.Newest(second))
	damaged.Set(podOf(t, "u2", 1, nil, share(3000, 20)))
	assert.NotEqual(t, second, damaged.Newest(second), "the annotations have it, too")
}

func TestLimitsThatCanNotBeWritten(t *testing.T) {
	n := open(t, t.TempDir(), nil)
	n.claim(t, "c1", "u1", share(1000, 10))
	apply := n.Config.Apply
	n.Config.Apply = func(string, ledger.Claim) error { return errors.New("no space") }
	n.Set(podOf(t, "u1", 1, nil, share(3000, 20)))
	assert.False(t, n.ApplyAll(background))
	assert.Equal(t, share(3000, 20), n.reserved(t, "c1"), "the higher amounts stay reserved")
	n.Config.Apply = apply
	assert.True(t, n.ApplyAll(background))
	assert.Equal(t, share(3000, 20), n.applied["c1"], "they are written although the amounts are reserved")
}

// Writing the limits succeeds at the second attempt.
func TestLimitsThatFollowLater(t *testing.T) {
	n := open(t, t.TempDir(), nil)
	n.claim(t, "c1", "u1", share(1000, 10))
	apply, calls := n.Config.Apply, 0
	n.Config.Apply = func(dir string, c ledger.Claim) error {
		if calls++; calls == 1 {
			return errors.New("permission denied")
		}
		return apply(dir, c)
	}
	n.Set(podOf(t, "u1", 1, nil, share(3000, 20)))
	assert.False(t, n.ApplyAll(background))
	assert.Equal(t, share(1000, 10), n.reserved(t, "c1"))
	assert.Equal(t, share(1000, 10), n.applied["c1"])
	assert.True(t, n.ApplyAll(background))
	assert.Equal(t, share(3000, 20), n.reserved(t, "c1"))
	assert.Equal(t, share(3000, 20), n.applied["c1"])
}

// A stored grant is either valid or not read.
func FuzzRead(f *testing.F) {
	path := filepath.Join(f.TempDir(), "uid.json")
	one := `{"version":1,"generation":2,"node":"n","containers":{"main":[{"uuid":"GPU-00000000-0000-4000-8000-000000000001","memoryMiB":1,"cores":1}]}}`
	data, err := json.Marshal(kept{Grant: one, Signature: "v1:a:b"})
	require.NoError(f, err)
	f.Add(data)
	f.Add(data[:40])
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, os.WriteFile(path, data, 0o600))
		one, err := read(path)
		if err != nil {
			return
		}
		again, err := grant.DecodeGrant(one.Grant)
		require.NoError(t, err)
		require.Equal(t, again, one.pod)
	})
}

// A pod with hardware isolation keeps its whole GPU, also if a scheduler that does not know the request resizes it.
func TestHardwareIsolationKeepsWholeGPUs(t *testing.T) {
	for description, annotation := range map[string]map[string]string{
		"ours": {api.AnnotationIsolation: "hardware"}, "HAMi's": {api.AnnotationMode: "mig"}, "unreadable": {api.AnnotationIsolation: "x"},
	} {
		t.Run(description, func(t *testing.T) {
			n := open(t, t.TempDir(), nil)
			n.claim(t, "c1", "u1", share(10_000, 100))
			resize := func(generation int64, to grant.Share) {
				pod := podOf(t, "u1", generation, nil, to)
				maps.Copy(pod.Annotations, annotation)
				n.Set(pod)
				assert.True(t, n.ApplyAll(background))
			}
			resize(1, share(9_999, 100))
			assert.Equal(t, share(10_000, 100), n.reserved(t, "c1"))
			resize(2, share(10_000, 50))
			want := share(10_000, 50)
			if description == "unreadable" {
				want = share(10_000, 100)
			}
			assert.Equal(t, want, n.reserved(t, "c1"))
		})
	}
}
