//go:build root

package node_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/granttest"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/stretchr/testify/require"
)

// The seeds of the tests' keys.
const (
	oldKey = "old"
	newKey = "new"
)

// writeKeys replaces a file of public keys by a rename, as the kubelet does with a ConfigMap.
func writeKeys(t *testing.T, path string, keys ...string) {
	require.NoError(t, os.WriteFile(path+".next", []byte(granttest.PublicKeys(keys...)), 0o444))
	require.NoError(t, os.Rename(path+".next", path))
}

// changeKeys writes other keys and waits until the agent has taken them over.
func changeKeys(t *testing.T, n *harness.Node, path string, keys ...string) {
	taken := func() int { return strings.Count(n.Agent.LogTail(1<<20), "grant keys read") }
	before := taken()
	writeKeys(t, path, keys...)
	require.NoError(t, harness.Until(context.Background(), time.Minute, func(context.Context) error {
		if taken() == before {
			return errors.New("the agent has not read its keys again")
		}
		return nil
	}))
}

// signed is a pod with our grant for its container "main", signed for it.
func signed(t *testing.T, key, name, uuid string, mib, cores int) harness.Pod {
	var err error
	pod := harness.Pod{Name: name, UID: "uid-" + name, Annotations: named(map[string]string{"main": share(uuid, mib, cores)})}
	pod.Annotations[api.AnnotationSignature], err = granttest.SigningKey(key).Sign(pod.UID, harness.NodeName, pod.Annotations[api.AnnotationGrant])
	require.NoError(t, err)
	return pod
}

// requireTotal checks the memory that a program in a container sees.
func requireTotal(t *testing.T, n *harness.Node, id string, mibs int64) {
	v := exec(t, n, id, workload("meminfo"))
	require.Equal(t, "1", v["device_count"])
	require.Equal(t, mibs*mib, number(t, v["device.0.total_bytes"]))
}

// requireRefused checks that a pod's container is not created, and the message.
func requireRefused(t *testing.T, n *harness.Node, p harness.Pod, c harness.Container, reasons ...string) {
	pod := run(t, n, p)
	_, err := pod.Create(context.Background(), c)
	for _, reason := range append(reasons, "default/"+p.Name, `"`+c.Name+`"`) {
		require.ErrorContains(t, err, reason)
	}
	require.NoError(t, pod.Remove(context.Background()))
}

// A node with keys takes signed grants and no others, while its keys change under
// running containers.
func TestSignedGrants(t *testing.T) {
	ctx := context.Background()
	keys := filepath.Join(t.TempDir(), "keys")
	writeKeys(t, keys, oldKey)
	n := newNode(t, harness.NodeOptions{AgentArgs: []string{"--grant-public-key-file=" + keys}})
	uuid := gpu(t, n, 0)
	main := harness.Container{Name: "main", Image: harness.GreedyImage}

	first := run(t, n, signed(t, oldKey, "first", uuid, 50000, 40))
	firstID := start(t, first, main)
	requireTotal(t, n, firstID, 50000)

	changed := signed(t, oldKey, "changed", uuid, 1000, 10)
	changed.Annotations[api.AnnotationGrant] = strings.Replace(changed.Annotations[api.AnnotationGrant], "1000", "9000", 1)
	stolen := harness.Pod{Name: "thief", Annotations: maps.Clone(first.Pod.Annotations)}
	requireRefused(t, n, harness.Pod{Name: "unsigned", Annotations: named(map[string]string{"main": share(uuid, 1000, 10)})}, main, "signed grants only")
	requireRefused(t, n, changed, main, "not for this grant")
	requireRefused(t, n, stolen, main, "not for this grant")
	requireRefused(t, n, signed(t, newKey, "early", uuid, 1000, 10), main, "was made with key "+granttest.SigningKey(newKey).ID())
	requireRefused(t, n, harness.Pod{Name: "hami", Annotations: hami(uuid, 1000, 10)}, main, "can't be signed")
	requireRefused(t, n, changed, harness.Container{Name: "side"}, "not for this grant")
	requireUngranted(t, n, "none")

	// Both keys: the scheduler may sign with either.
	changeKeys(t, n, keys, newKey, oldKey)
	second := run(t, n, signed(t, newKey, "second", uuid, 3000, 10))
	secondID := start(t, second, main)
	requireTotal(t, n, secondID, 3000)
	late := run(t, n, signed(t, oldKey, "late", uuid, 4000, 10))
	requireTotal(t, n, start(t, late, main), 4000)
	require.NoError(t, late.Remove(ctx))

	// The old one is gone: what it let in runs on and is reserved, also by an agent
	// that has lost its state; its next attempt is refused.
	changeKeys(t, n, keys, newKey)
	requireTotal(t, n, firstID, 50000)
	require.NoError(t, n.Agent.Stop(harness.StopPatience))
	require.NoError(t, harness.LoseClaims(n.StateDir()))
	require.NoError(t, n.StartAgent(ctx))
	reserved, err := n.Reserved(ctx)
	require.NoError(t, err)
	require.Equal(t, map[string]int64{firstID: 50000, secondID: 3000}, reserved)
	requireTotal(t, n, firstID, 50000)
	_, err = first.Create(ctx, harness.Container{Name: "main", Attempt: 1})
	require.ErrorContains(t, err, "was made with key "+granttest.SigningKey(oldKey).ID())
	requireRefused(t, n, signed(t, newKey, "large", uuid, 100000, 10), main, uuid)

	// A bad file changes nothing, and is reported.
	require.NoError(t, os.Remove(keys))
	require.NoError(t, os.WriteFile(keys, []byte("nonsense"), 0o400))
	require.NoError(t, harness.Until(ctx, time.Minute, func(context.Context) error {
		if !strings.Contains(n.Agent.LogTail(1<<20), "grant keys not read") {
			return errors.New("the agent has not reported that its keys are bad")
		}
		return nil
	}))
	third := run(t, n, signed(t, newKey, "third", uuid, 1000, 10))
	requireTotal(t, n, start(t, third, main), 1000)

	for _, pod := range []*harness.Sandbox{first, second, third} {
		require.NoError(t, pod.Remove(ctx))
	}
	requireNothingLeft(t, n)
}

// With --unscheduled-policy=share a container gets the equal share of the replicas that the kubelet gave it.
// An annotation of the container has them, as the kubelet writes it.
func TestUnscheduledShare(t *testing.T) {
	ctx := context.Background()
	n := newNode(t, harness.NodeOptions{AgentArgs: []string{"--unscheduled-policy=share", "--device-split-count=4"}})
	s, err := n.Status(ctx)
	require.NoError(t, err)
	uuid, part := s.GPUs[0].UUID, s.GPUs[0].MemoryMiB/4
	with := func(replicas ...string) harness.Container {
		return harness.Container{Name: "main", Env: []string{"NVIDIA_VISIBLE_DEVICES=void"},
			Annotations: map[string]string{api.AnnotationReplicas: strings.Join(replicas, ",")}}
	}
	replica := func(number int) string { return fmt.Sprintf("%s::%d", uuid, number) }

	one, two := run(t, n, harness.Pod{Name: "one"}), run(t, n, harness.Pod{Name: "two"})
	oneID := start(t, one, with(replica(0)))
	requireTotal(t, n, oneID, part)
	v := exec(t, n, oneID, workload("alloc"), "--chunk-mib=100")
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", v["result"], "and is held to it")
	require.LessOrEqual(t, number(t, v["allocated_bytes"]), (part-contextMiB)*mib)
	requireTotal(t, n, start(t, two, with(replica(1), replica(2))), 2*part)
	s, err = n.Status(ctx)
	require.NoError(t, err)
	require.Equal(t, 3*part, s.GPUs[0].GrantedMemoryMiB)
	require.Equal(t, 75, s.GPUs[0].GrantedCores)

	twice := with(replica(0), replica(1))
	requireRefused(t, n, harness.Pod{Name: "held"}, twice, uuid)
	requireRefused(t, n, harness.Pod{Name: "outside"}, with(replica(4)), "4 replicas")
	requireRefused(t, n, harness.Pod{Name: "foreign"}, with("GPU-ffffffff-5151-4000-8000-000000000001::0"), "no such GPU")
	requireRefused(t, n, harness.Pod{Name: "malformed"}, with("all"), "must be <UUID>::<n>")
	// A scheduler's grant is all that a container gets.
	scheduled := run(t, n, harness.Pod{Name: "scheduled", Annotations: hami(uuid, 700, 5)})
	requireTotal(t, n, start(t, scheduled, with(replica(3))), 700)
	other := run(t, n, harness.Pod{Name: "other", Annotations: named(map[string]string{"side": share(uuid, 500, 5)})})
	_, _, code, err := n.Exec(ctx, start(t, other, with(replica(3))), workload("meminfo"))
	require.NoError(t, err)
	require.Equal(t, 4, code, "nor does one that a scheduler left out get a share")
	// The pod's own annotations are its author's.
	author := harness.Pod{Name: "author", Annotations: map[string]string{api.AnnotationReplicas: replica(3)}}
	requireRefused(t, n, author, harness.Container{Name: "main"}, "is on the pod")

	// A restart loses nothing, nor does the loss of the state directory.
	require.NoError(t, n.Agent.Stop(harness.StopPatience))
	require.NoError(t, harness.LoseClaims(n.StateDir()))
	require.NoError(t, n.StartAgent(ctx))
	requireTrueLedger(t, n)
	requireTotal(t, n, oneID, part)
	require.NoError(t, n.RemoveAllPods(ctx))
	requireNothingLeft(t, n)
}
