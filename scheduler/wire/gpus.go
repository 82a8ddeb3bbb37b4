package wire

import (
	"fmt"
	"slices"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler"
)

func decodeGPUs(value string) (scheduler.Inventory, error) {
	var doc api.NodeGPUs
	if err := decodeJSON(value, &doc); err != nil {
		return scheduler.Inventory{}, err
	}
	if doc.Version != api.NodeGPUsVersion {
		return scheduler.Inventory{}, fmt.Errorf("version %d: this scheduler supports version %d", doc.Version, api.NodeGPUsVersion)
	}
	gpus := make([]scheduler.GPU, len(doc.GPUs))
	for i, t := range doc.GPUs {
		if t.MemoryMiB == nil || t.Cores == nil || t.Replicas == nil || t.Healthy == nil {
			return scheduler.Inventory{}, fmt.Errorf("GPU %d: memoryMiB, cores, replicas and healthy are required", i)
		}
		gpus[i] = scheduler.GPU{
			UUID: t.UUID, Model: t.Model, Index: t.Index, NUMA: scheduler.NUMAUnknown,
			MemoryMiB: *t.MemoryMiB, Cores: *t.Cores, Replicas: *t.Replicas, Mode: t.Mode, Healthy: *t.Healthy,
		}
		if t.NUMA != nil {
			gpus[i].NUMA = *t.NUMA
		}
	}
	if err := checkLinks(doc.Links, len(gpus)); err != nil {
		return scheduler.Inventory{}, err
	}
	sorted, err := ordered(slices.Clone(gpus))
	if err != nil {
		return scheduler.Inventory{}, err
	}
	return scheduler.Inventory{GPUs: sorted, Links: rearranged(doc.Links, gpus, sorted)}, nil
}

func checkLinks(links [][]int, gpus int) error {
	if links == nil {
		return nil
	}
	if len(links) != gpus {
		return fmt.Errorf("links: %d rows for %d GPUs", len(links), gpus)
	}
	for i, row := range links {
		if len(row) != gpus {
			return fmt.Errorf("links: row %d has %d columns for %d GPUs", i, len(row), gpus)
		}
	}
	for i, row := range links {
		for j, link := range row {
			if link < 0 || link > maxLink || link != links[j][i] || i == j && link != 0 {
				return fmt.Errorf("links: %d from GPU %d to GPU %d: must be from 0 to %d, symmetric, and 0 on the diagonal", link, i, j, maxLink)
			}
		}
	}
	return nil
}

// rearranged sorts the links like the GPUs.
func rearranged(links [][]int, gpus, sorted []scheduler.GPU) [][]int {
	if links == nil {
		return nil
	}
	was := make([]int, len(sorted))
	for i := range sorted {
		was[i] = slices.IndexFunc(gpus, func(c scheduler.GPU) bool { return c.UUID == sorted[i].UUID })
	}
	out := table(len(sorted))
	for i := range out {
		for j := range out[i] {
			out[i][j] = links[was[i]][was[j]]
		}
	}
	return out
}

func table(n int) [][]int {
	rows, space := make([][]int, n), make([]int, n*n)
	for i := range rows {
		rows[i] = space[i*n : (i+1)*n : (i+1)*n]
	}
	return rows
}
