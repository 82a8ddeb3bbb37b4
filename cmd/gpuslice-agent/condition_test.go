package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpuslice/gpuslice/agent/noderegister"
)

// refusing refuses each patch of a status.
type refusing struct {
	noderegister.Client
	err     error
	patches []string
}

func (r *refusing) PatchStatus(_ context.Context, _ string, patch []byte) error {
	r.patches = append(r.patches, string(patch))
	return r.err
}

// The condition is removed also where the flag is not set any more; without the right to, it stays.
func TestRetireRemovesTheCondition(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes/status"}, "gpu-1", errors.New("no"))
	other := errors.New("connection refused")
	for _, c := range []struct {
		flag bool
		err  error
		want error
	}{
		{true, nil, nil}, {false, nil, nil}, {false, forbidden, nil}, {true, forbidden, forbidden}, {false, other, other},
	} {
		client := &refusing{err: c.err}
		o := options{NodeName: "gpu-1"}
		o.NodeCondition = c.flag
		require.ErrorIs(t, removeCondition(t.Context(), client, o, slog.New(slog.DiscardHandler)), c.want)
		require.Equal(t, []string{`{"status":{"conditions":[{"$patch":"delete","type":"GPUShareIsolationVerified"}]}}`}, client.patches)
	}
}
