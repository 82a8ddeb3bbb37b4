package noderegister

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Capacity names the extended resources that are written to the node's capacity, for autoscalers, which know no memory of a
// GPU otherwise. Empty: not written. The values are the sums of all GPUs. A sum is more than what one GPU has: with
// it only a node that is too small is recognised.
type Capacity struct{ Memory, MemoryPercentage, Cores string }

// ParseCapacity reads "memory=NAME", "memory-percentage=NAME" and "cores=NAME".
func ParseCapacity(entries []string) (c Capacity, err error) {
	for _, entry := range entries {
		kind, name, _ := strings.Cut(entry, "=")
		to, ok := map[string]*string{"memory": &c.Memory, "memory-percentage": &c.MemoryPercentage, "cores": &c.Cores}[kind]
		if !ok || !strings.Contains(name, "/") || len(validation.IsQualifiedName(name)) > 0 {
			return Capacity{}, fmt.Errorf("%q: must be memory=NAME, memory-percentage=NAME or cores=NAME with the name of an extended resource", entry)
		}
		*to = name
	}
	return c, nil
}

func (c Capacity) names() []string {
	return slices.DeleteFunc([]string{c.Memory, c.MemoryPercentage, c.Cores}, func(name string) bool { return name == "" })
}

// of includes unhealthy GPUs: a kubelet that restarts admits the node's pods again, and rejects those beyond the capacity.
func (c Capacity) of(devices []Device) map[string]string {
	var memory, percentage, cores int64
	for _, d := range devices {
		if !d.partitioned() {
			memory, percentage, cores = memory+max(d.MemoryMiB, 0), percentage+100, cores+int64(max(d.CorePercent, 0))
		}
	}
	sums := map[string]string{}
	for name, sum := range map[string]int64{c.Memory: memory, c.MemoryPercentage: percentage, c.Cores: cores} {
		if name != "" {
			sums[name] = strconv.FormatInt(sum, 10)
		}
	}
	return sums
}

// writtenCapacity is what was written to which Node object. The kubelet keeps the resources of others; a Node that is created
// again has none.
type writtenCapacity struct {
	node types.UID
	sums map[string]string
}

func (p *Publisher) writeCapacity(ctx context.Context, node types.UID) error {
	sums := p.cfg.Options.Capacity.of(p.last.Devices)
	if len(sums) == 0 || p.capacity.node == node && maps.Equal(p.capacity.sums, sums) {
		return nil
	}
	if err := patchCapacity(ctx, p.cfg.Client, p.cfg.NodeName, sums); err != nil {
		return err
	}
	p.capacity = writtenCapacity{node, sums}
	p.cfg.Log.Info("node capacity updated", "node", p.cfg.NodeName, "resources", sums)
	return nil
}

// RemoveCapacity removes the resources from the node's capacity.
func RemoveCapacity(ctx context.Context, client Client, node string, c Capacity) error {
	if len(c.names()) == 0 {
		return nil
	}
	none := map[string]any{}
	for _, name := range c.names() {
		none[name] = nil
	}
	return patchCapacity(ctx, client, node, none)
}

func patchCapacity[V any](ctx context.Context, client Client, node string, capacity map[string]V) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": capacity}})
	if err != nil {
		return err
	}
	if err := client.PatchStatus(ctx, node, patch); err != nil {
		return fmt.Errorf("write the node's capacity: %w", err)
	}
	return nil
}
