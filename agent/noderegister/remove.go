package noderegister

import (
	"context"
	"fmt"
)

// Remove deletes all labels and annotations of which the agent is the last writer, and returns
// their number.
func Remove(ctx context.Context, client Client, node string) (removed int, err error) {
	got, err := client.Get(ctx, node)
	if err != nil {
		return 0, fmt.Errorf("read the node: %w", err)
	}
	owned := ownedBy(got.ManagedFields, fieldManager)
	diff := changes{
		Labels:      differ(got.Labels, nil, owned.labels),
		Annotations: differ(got.Annotations, nil, owned.annotations),
	}
	if diff.empty() {
		return 0, nil
	}
	if _, err := client.Patch(ctx, node, diff.patch()); err != nil {
		return 0, fmt.Errorf("write to the node: %w", err)
	}
	return len(diff.Labels) + len(diff.Annotations), nil
}
