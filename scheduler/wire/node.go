// Package wire reads and writes the annotations of nodes and pods, ours and HAMi's, so that HAMi's scheduler
// works with our nodes and our scheduler with HAMi's. HAMi's device plugin serves the pod of its node in phase
// "allocating", so package kube binds one pod at a time to such a node, under hami.io/mutex.lock.
package wire

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
	"github.com/gpuslice/gpuslice/scheduler"
)

// Limits on a node's data, to bound the scheduler's cost and prevent overflow.
const (
	// MaxAnnotationBytes is Kubernetes' limit for all annotations of an object.
	MaxAnnotationBytes = grant.MaxAnnotationBytes
	// MaxGPUs is per node.
	MaxGPUs     = 64
	maxModel    = 256
	maxIndex    = 1 << 12
	maxNUMA     = 1 << 10
	maxCores    = 1 << 16
	maxReplicas = 1 << 16
	maxLink     = 1 << 20
)

// DecodeNode returns the GPUs in a node's annotations: ours if valid, else HAMi's. The warning is about what
// was ignored: our invalid annotation, entries of HAMi's lists that can't be read, and differences between the
// two. On an error, nothing may be placed on the node.
func DecodeNode(n *scheduler.Node) (_ scheduler.Inventory, warning, err error) {
	inventory, warning, err := gpus(n.Annotations)
	if value, ok := n.Annotations[api.AnnotationHAMiCordon]; ok && err == nil {
		var skipped error
		skipped, err = cordon(inventory.GPUs, value)
		warning, err = both(warning, in(api.AnnotationHAMiCordon, skipped)), in(api.AnnotationHAMiCordon, err)
	}
	if warning != nil {
		warning = fmt.Errorf("node %q: %w", n.Name, warning)
	}
	if err != nil {
		return scheduler.Inventory{}, warning, fmt.Errorf("node %q: %w", n.Name, err)
	}
	return inventory, warning, nil
}

func in(key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("annotation %s: %w", key, err)
}

func both(first, second error) error {
	if first == nil || second == nil {
		return cmp.Or(first, second)
	}
	return fmt.Errorf("%w; %w", first, second)
}

// gpus reads the first valid format.
func gpus(annotations map[string]string) (_ scheduler.Inventory, warning, err error) {
	if value, ok := annotations[api.AnnotationNodeGPUs]; ok {
		inventory, err := decodeGPUs(value)
		if err == nil {
			return inventory, disagree(inventory.GPUs, annotations), nil
		}
		warning = in(api.AnnotationNodeGPUs, err)
	}
	value, ok := annotations[api.AnnotationHAMiRegister]
	if !ok {
		return scheduler.Inventory{}, nil, warning
	}
	registered, skipped, err := decodeRegister(value)
	if err != nil {
		return scheduler.Inventory{}, nil, both(warning, in(api.AnnotationHAMiRegister, err))
	}
	warning = both(warning, in(api.AnnotationHAMiRegister, skipped))
	_, ours := annotations[api.AnnotationNodeGPUs]
	inventory := scheduler.Inventory{GPUs: registered, HAMi: !ours}
	if value, ok := annotations[api.AnnotationHAMiScore]; ok {
		inventory.Links, skipped, err = decodeScore(value, registered)
		warning = both(warning, in(api.AnnotationHAMiScore, cmp.Or(err, skipped)))
	}
	return inventory, warning, nil
}

// disagree reports differences: one of the annotations is outdated, or another agent's.
func disagree(ours []scheduler.GPU, annotations map[string]string) error {
	value, ok := annotations[api.AnnotationHAMiRegister]
	if !ok {
		return nil
	}
	theirs, skipped, err := decodeRegister(value)
	if err = cmp.Or(err, skipped); err != nil {
		return in(api.AnnotationHAMiRegister, err)
	}
	memory := make(map[string]int64, len(theirs))
	for _, g := range theirs {
		memory[g.UUID] = g.MemoryMiB
	}
	difference := func() string {
		for _, g := range ours {
			mib, ok := memory[g.UUID]
			delete(memory, g.UUID)
			switch {
			case !ok:
				return fmt.Sprintf("GPU %s is only in the first", g.UUID)
			case mib != g.MemoryMiB:
				return fmt.Sprintf("GPU %s has %d MiB in the first and %d in the second", g.UUID, g.MemoryMiB, mib)
			}
		}
		for _, g := range theirs {
			if _, ok := memory[g.UUID]; ok {
				return fmt.Sprintf("GPU %s is only in the second", quote.Short(g.UUID))
			}
		}
		return ""
	}()
	if difference == "" {
		return nil
	}
	return fmt.Errorf("annotations %s and %s: %s: using the first; make sure a single agent writes both, or remove the "+
		"outdated one", api.AnnotationNodeGPUs, api.AnnotationHAMiRegister, difference)
}

func ordered(gpus []scheduler.GPU) ([]scheduler.GPU, error) {
	if len(gpus) > MaxGPUs {
		return nil, fmt.Errorf("%d GPUs: a node may have at most %d", len(gpus), MaxGPUs)
	}
	seen := make(map[string]struct{}, len(gpus))
	for i := range gpus {
		if err := check(&gpus[i]); err != nil {
			return nil, fmt.Errorf("GPU %d: %w", i, err)
		}
		if _, ok := seen[gpus[i].UUID]; ok {
			return nil, fmt.Errorf("GPU %d: %s is listed more than once", i, gpus[i].UUID)
		}
		seen[gpus[i].UUID] = struct{}{}
	}
	order(gpus)
	return gpus, nil
}

func order(gpus []scheduler.GPU) {
	slices.SortFunc(gpus, func(a, b scheduler.GPU) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
}

func check(c *scheduler.GPU) error {
	if err := grant.ValidateUUID(c.UUID); err != nil {
		return fmt.Errorf("uuid %s: %w", quote.Short(c.UUID), err)
	}
	if len(c.Model) > maxModel || !utf8.ValidString(c.Model) {
		return fmt.Errorf("model %s: must be valid UTF-8 of at most %d bytes", quote.Short(c.Model), maxModel)
	}
	if c.NUMA < 0 {
		c.NUMA = scheduler.NUMAUnknown
	}
	switch c.Mode {
	case "":
		c.Mode = api.ModeShared
	case api.ModeShared, "mig", "mps":
	default:
		return fmt.Errorf("mode %s: must be %s, mig or mps", quote.Short(c.Mode), api.ModeShared)
	}
	for _, f := range [...]struct {
		name    string
		n, most int64
	}{
		{"index", int64(c.Index), maxIndex}, {"numa", int64(max(c.NUMA, 0)), maxNUMA}, {"memory", c.MemoryMiB, grant.MaxMemoryMiB},
		{"cores", int64(c.Cores), maxCores}, {"replicas", int64(c.Replicas), maxReplicas},
		{"memory of others", c.Others.MemoryMiB, grant.MaxMemoryMiB}, {"cores of others", int64(c.Others.Cores), maxCores},
		{"replicas of others", int64(c.Others.Replicas), maxReplicas},
	} {
		if f.n < 0 || f.n > f.most {
			return fmt.Errorf("%s %d: must be from 0 to %d", f.name, f.n, f.most)
		}
	}
	return nil
}

// cordon marks the listed GPUs. Unknown GPUs may be listed.
func cordon(gpus []scheduler.GPU, value string) (skipped, err error) {
	if err := checkLength(value); err != nil {
		return nil, err
	}
	for uuid := range strings.SplitSeq(value, ",") {
		uuid = strings.TrimSpace(uuid)
		if uuid == "" {
			continue
		}
		if err := grant.ValidateUUID(uuid); err != nil && skipped == nil {
			skipped = fmt.Errorf("%s: %w: skipped", quote.Short(uuid), err)
		}
		for i := range gpus {
			if gpus[i].UUID == uuid {
				gpus[i].Cordoned = true
			}
		}
	}
	return skipped, nil
}

func checkLength(value string) error {
	if len(value) > MaxAnnotationBytes {
		return fmt.Errorf("%d bytes: more than the limit of %d", len(value), MaxAnnotationBytes)
	}
	return nil
}

// decodeJSON shortens errors: package json repeats input of any length.
func decodeJSON(value string, into any) error {
	if err := checkLength(value); err != nil {
		return err
	}
	err := json.Unmarshal([]byte(value), into)
	if err == nil {
		return nil
	}
	text := err.Error()
	if len(text) > 4*quote.MaxBytes {
		text = text[:4*quote.MaxBytes] + "…"
	}
	return fmt.Errorf("invalid JSON: %s", text)
}

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
		gpus[i].Isolation, _ = grant.ParseIsolation(t.Isolation) // one that this version does not know is not known
		if t.NUMA != nil {
			gpus[i].NUMA = *t.NUMA
		}
		if t.Others != nil {
			gpus[i].Others = scheduler.Use{MemoryMiB: t.Others.MemoryMiB, Cores: t.Others.Cores, Replicas: t.Others.Replicas}
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
