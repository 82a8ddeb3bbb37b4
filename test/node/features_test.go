//go:build root

package node_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// GPUDirect Storage, Mellanox OFED and GDRCopy, as NVIDIA's toolkit describes them by CDI, are in containers with a grant and in
// no others. Without a description no container with a grant is created.
func TestDriverFeatures(t *testing.T) {
	ctx := context.Background()
	n := newNode(t, harness.NodeOptions{AgentArgs: []string{"--gds-enabled", "--mofed-enabled", "--gdrcopy-enabled", "--imex-channel-ids=0"}})
	uuid := gpu(t, n, 0)
	pod := run(t, n, harness.Pod{Name: "granted", Annotations: hami(uuid, 2000, 10)})
	_, err := pod.Create(ctx, harness.Container{Name: "main"})
	require.ErrorContains(t, err, "nvidia.com/gds is configured for every container with a GPU")
	require.NoError(t, pod.Remove(ctx))

	config := filepath.Join(n.Dir, "cufile.json")
	require.NoError(t, os.WriteFile(config, []byte("of GDS\n"), 0o644))
	for kind, edits := range map[string]string{
		"gds":     fmt.Sprintf("mounts: [{hostPath: %s, containerPath: /etc/cufile.json, options: [ro, bind]}]", config),
		"mofed":   "deviceNodes: [{path: /dev/infiniband/uverbs0, type: c, major: 1, minor: 3}]",
		"gdrcopy": "deviceNodes: [{path: /dev/gdrdrv, type: c, major: 1, minor: 5}]",
	} {
		text := fmt.Sprintf("cdiVersion: 0.5.0\nkind: nvidia.com/%s\ndevices: [{name: all, containerEdits: {%s}}]\n", kind, edits)
		require.NoError(t, os.WriteFile(filepath.Join(n.CDIDir(), kind+".yaml"), []byte(text), 0o644))
	}
	pod = run(t, n, harness.Pod{Name: "granted", Annotations: hami(uuid, 2000, 10)})
	var id string
	require.NoError(t, harness.Until(ctx, time.Minute, func(ctx context.Context) (err error) { // the agent reads the descriptions again
		id, err = pod.Start(ctx, harness.Container{Name: "main"})
		return err
	}))
	has := "cat /etc/cufile.json; test -c /dev/infiniband/uverbs0 && head -c 1 /dev/gdrdrv | od -An -tx1"
	stdout, stderr, code, err := n.Exec(ctx, id, "/bin/busybox", "sh", "-c", has)
	require.NoError(t, err)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "of GDS\n")
	require.Contains(t, stdout, "00")
	require.Equal(t, int64(2000*mib), number(t, exec(t, n, id, workload("meminfo"))["device.0.total_bytes"]))

	other := run(t, n, harness.Pod{Name: "other"})
	id = start(t, other, harness.Container{Name: "main"})
	_, _, code, err = n.Exec(ctx, id, "/bin/busybox", "sh", "-c", "test -e /etc/cufile.json || test -e /dev/infiniband || test -e /dev/gdrdrv")
	require.NoError(t, err)
	require.Equal(t, 1, code, "it has no grant")
	require.NoError(t, pod.Remove(ctx))
	require.NoError(t, other.Remove(ctx))
	requireNothingLeft(t, n)
}
