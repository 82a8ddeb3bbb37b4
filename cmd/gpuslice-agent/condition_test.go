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

// The conditions are removed also where the flag is not set any more; without the right to, they stay.
func TestRetireRemovesTheConditions(t *testing.T) {
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
		require.ErrorIs(t, removeConditions(t.Context(), client, o, slog.New(slog.DiscardHandler)), c.want)
		patches := []string{`{"status":{"conditions":[{"$patch":"delete","type":"GPUShareIsolationVerified"}]}}`, `{"status":{"conditions":[{"$patch":"delete","type":"GPUMemoryLimitedByDriver"}]}}`}
		if c.want != nil {
			patches = patches[:1]
		}
		require.Equal(t, patches, client.patches)
	}
}
