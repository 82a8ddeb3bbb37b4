//go:build e2e

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/test/docs/pages"
	"github.com/gpuslice/gpuslice/test/harness"
)

// verifyRuns is how often docs/VERIFY.md's commands run where the machine is too slow for a check.
const verifyRuns = 3

// The commands of docs/VERIFY.md check the node with containers that get their shares as all others do. The agent writes
// the result to the node's conditions, with the rights that the chart gives it.
func TestVerify(t *testing.T) {
	ctx := context.Background()
	blocks := blocksOf(t, "docs/VERIFY.md")
	require.Len(t, blocks, 2)
	on, remove := blocks[0], blocks[1]
	require.Len(t, on.Commands, 3)
	r := newReader(t, map[string]string{"NODE": harness.NodeName})
	t.Cleanup(func() { require.NoError(t, cluster.InstallChart(ctx)) })
	require.NoError(t, cluster.InstallChart(ctx, "--set=agent.config.audit-interval=1s"))
	stop := harness.KeepBusy()
	r.does(commandsOf(on, 0))
	err := harness.Until(ctx, patience, func(ctx context.Context) error { return cluster.WaitRelease(ctx) })
	for range verifyRuns {
		_, err = r.shell(ctx, "cd "+r.dir+"\n"+on.Commands[1].Text)
		out := r.does(commandsOf(on, 2))
		require.NotContains(t, out, " failed ")
		if err == nil || !strings.Contains(out, " not run ") {
			break
		}
	}
	require.NoError(t, errors.Join(err, stop()))
	require.NoError(t, harness.Until(ctx, patience, func(ctx context.Context) error {
		c, all, err := isolationVerified(ctx)
		switch {
		case err != nil:
			return err
		case c == nil || c.Status != corev1.ConditionTrue:
			return fmt.Errorf("conditions: %+v", all)
		}
		require.Greater(t, len(all), 3, "the kubelet's are there too")
		require.Regexp(t, "^verified on .* with driver ", c.Message)
		return nil
	}))

	require.NoError(t, cluster.InstallChart(ctx))
	r.does(remove)
	c, all, err := isolationVerified(ctx)
	require.NoError(t, err)
	require.Nil(t, c, "%+v", all)
}

// commandsOf is a block with one of its commands.
func commandsOf(b pages.Block, which int) pages.Block {
	b.Commands = b.Commands[which : which+1]
	return b
}

// isolationVerified returns the node's condition, if it has it, and all its conditions.
func isolationVerified(ctx context.Context) (*corev1.NodeCondition, []corev1.NodeCondition, error) {
	node, err := cluster.API.CoreV1().Nodes().Get(ctx, harness.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	all := node.Status.Conditions
	if i := slices.IndexFunc(all, func(c corev1.NodeCondition) bool { return c.Type == "GPUShareIsolationVerified" }); i >= 0 {
		return &all[i], all, nil
	}
	return nil, all, nil
}
