package wire

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
	"github.com/gpuslice/gpuslice/scheduler"
)

// DecodeTemplate returns the GPUs of a node that does not exist yet, as an autoscaler describes it: a copy of an existing
// node, or the labels that the agent would write ("gpuslice.io/gpu.count", …). What is of the copied node only does not
// count: its UUIDs, what containers use, the health of its GPUs and cordons.
func DecodeTemplate(n *scheduler.Node) (scheduler.Inventory, error) {
	inventory, _, err := gpus(n.Annotations)
	if err == nil && len(inventory.GPUs) == 0 {
		inventory, err = fromLabels(n.Labels)
	}
	if err != nil {
		return scheduler.Inventory{}, fmt.Errorf("template node %q: %w", n.Name, err)
	}
	for i := range inventory.GPUs {
		gpu := &inventory.GPUs[i]
		gpu.UUID, gpu.Others, gpu.Healthy, gpu.Cordoned = templateUUID(i), scheduler.Use{}, true, false
	}
	return inventory, nil
}

// templateUUID is no GPU's.
func templateUUID(i int) string { return fmt.Sprintf("GPU-00000000-0000-0000-0000-%012x", i) }

// templateReplicas is the agent's default of --device-split-count.
const templateReplicas = 10

func fromLabels(labels map[string]string) (scheduler.Inventory, error) {
	number := func(name string, missing, least int64) (int64, error) {
		value, ok := labels[api.LabelPrefix+name]
		if !ok && missing > 0 {
			return missing, nil
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < least {
			return 0, fmt.Errorf("label %s%s=%s: must be a number of at least %d", api.LabelPrefix, name, quote.Short(value), least)
		}
		return n, nil
	}
	if labels[api.LabelPrefix+"count"] == "" {
		return scheduler.Inventory{}, nil
	}
	count, err := number("count", 0, 0)
	if err == nil && count > MaxGPUs {
		err = fmt.Errorf("label %scount=%d: a node may have at most %d", api.LabelPrefix, count, MaxGPUs)
	}
	if err != nil || count == 0 {
		return scheduler.Inventory{}, err
	}
	memory, err := number("memory", 0, 1)
	if err != nil {
		return scheduler.Inventory{}, err
	}
	replicas, err := number("replicas", templateReplicas, 1)
	if err != nil {
		return scheduler.Inventory{}, err
	}
	model := labels[api.LabelPrefix+"model"]
	if !strings.HasPrefix(model, "NVIDIA") {
		model = "NVIDIA-" + model
	}
	isolation, _ := grant.ParseIsolation(api.IsolationOfShare(labels[api.LabelPrefix+"memory-enforcement"], false))
	var inventory scheduler.Inventory
	for i := range int(count) {
		gpu := scheduler.GPU{
			UUID: templateUUID(i), Model: model, Index: i, NUMA: scheduler.NUMAUnknown, MemoryMiB: memory, Cores: 100,
			Replicas: int(replicas), Mode: labels[api.LabelPrefix+"mode"], Isolation: isolation,
		}
		if err := check(&gpu); err != nil {
			return scheduler.Inventory{}, fmt.Errorf("labels %s*: %w", api.LabelPrefix, err)
		}
		inventory.GPUs = append(inventory.GPUs, gpu)
	}
	return inventory, nil
}
