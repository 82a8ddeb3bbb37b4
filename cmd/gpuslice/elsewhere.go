package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/scheduler"
)

// place is the node that a call is about: this one, or one of the cluster.
type place struct {
	node view.Node
	file node.File
	// elsewhere says that it was asked through the API server: what is in the node's own
	// files alone isn't known.
	elsewhere bool
}

// readPlace reads the node of a call with so many arguments that name what is on it; one
// more, the first, is a node of the cluster. It returns the others.
func readPlace(c *cobra.Command, args []string, names int) (place, []string, error) {
	if len(args) == names {
		if isPlugin() && !c.Flags().Changed("state-dir") {
			return place{}, nil, map[int]error{0: errors.New("which node? want NODE"), 1: errWhichNode}[names]
		}
		n, f, err := readFiles(c)
		return place{node: n, file: f}, args, err
	}
	p, err := readElsewhere(c, args[0])
	return p, args[1:], err
}

// readElsewhere reads a node of the cluster.
func readElsewhere(c *cobra.Command, name string) (place, error) {
	connection, err := connect(c)
	if err != nil {
		return place{}, work(err)
	}
	ctx, cancel := context.WithTimeout(c.Context(), answerPatience)
	defer cancel()
	n, inventory, err := connection.Node(ctx, name)
	if err != nil {
		return place{}, work(err)
	}
	return place{node: n, file: fileOf(n, inventory), elsewhere: true}, nil
}

// findElsewhere finds a container of the cluster: NAMESPACE/POD, and its container where
// several have shares, behind a colon or a slash.
func findElsewhere(c *cobra.Command, target string) (place, view.Container, error) {
	if strings.Count(target, "/") == 2 && !strings.Contains(target, ":") {
		last := strings.LastIndex(target, "/")
		target = target[:last] + ":" + target[last+1:]
	}
	namespace, pod, container, err := podName(target)
	if err != nil {
		return place{}, view.Container{}, err
	}
	connection, err := connect(c)
	if err != nil {
		return place{}, view.Container{}, work(err)
	}
	ctx, cancel := context.WithTimeout(c.Context(), answerPatience)
	defer cancel()
	namespace = cmp.Or(namespace, connection.Namespace)
	name, err := connection.NodeOf(ctx, namespace, pod)
	if err != nil {
		return place{}, view.Container{}, work(err)
	}
	p, err := readElsewhere(c, name)
	if err != nil {
		return p, view.Container{}, err
	}
	target = namespace + "/" + pod
	if container != "" {
		target += ":" + container
	}
	ofPod := slices.DeleteFunc(slices.Clone(p.node.Containers), func(c view.Container) bool { return c.Pod != namespace+"/"+pod })
	found, err := findContainer(ofPod, target)
	if err != nil && len(ofPod) == 0 {
		err = fmt.Errorf("no container of pod %s has a share that node %s tells of", target, name)
	}
	if err != nil && len(p.node.Problems) > 0 {
		err = fmt.Errorf("%w; %s", err, term.Clean(strings.Join(p.node.Problems, "; ")))
	}
	return p, found, work(err)
}

// fileOf is what of a node's node.json its agent and its Node object tell: which GPUs
// there are, with their MIG devices, where they are, and how they are connected.
func fileOf(n view.Node, told scheduler.Inventory) node.File {
	f := node.File{Name: n.Name, WrittenAt: n.GPUsReadAt, Node: nvidia.Node{DriverVersion: n.DriverVersion, CUDAVersion: n.CUDAVersion}}
	numa := map[string]int{}
	for _, c := range told.GPUs {
		numa[c.UUID] = c.NUMA
	}
	at := map[int]int{} // by index
	for _, c := range n.GPUs {
		if c.MIGProfile != "" {
			continue
		}
		gpu := nvidia.GPU{UUID: c.UUID, Index: c.Index, Model: c.Model, MemoryMiB: c.MemoryMiB, NUMANode: nvidia.NUMAUnknown}
		if of, known := numa[c.UUID]; known && of != scheduler.NUMAUnknown {
			gpu.NUMANode = of
		}
		at[c.Index] = len(f.Node.GPUs)
		f.Node.GPUs = append(f.Node.GPUs, gpu)
	}
	for _, c := range n.GPUs {
		if i, known := at[c.Index]; known && c.MIGProfile != "" {
			gpu := &f.Node.GPUs[i]
			gpu.MIG = append(gpu.MIG, nvidia.MIGDevice{UUID: c.UUID, GPU: gpu.UUID, Profile: c.MIGProfile, MemoryMiB: c.MemoryMiB})
		}
	}
	slices.SortStableFunc(f.Node.GPUs, func(a, b nvidia.GPU) int { return cmp.Compare(a.Index, b.Index) })
	f.Topology = topologyTold(told)
	if len(f.Node.GPUs) == 1 {
		f.Topology = alone(f.Node.GPUs[0].UUID)
	}
	return f
}

// topologyTold is how the GPUs are connected, by their scores (nvidia.Pair.Score).
func topologyTold(told scheduler.Inventory) (t nvidia.Topology) {
	if len(told.Links) != len(told.GPUs) {
		return t // nobody knows
	}
	for i, c := range told.GPUs {
		t.UUIDs = append(t.UUIDs, c.UUID)
		row := make([]nvidia.Pair, len(told.GPUs))
		for j := range row {
			if i != j && j < len(told.Links[i]) {
				row[j] = nvidia.PairOf(told.Links[i][j])
			}
		}
		t.Pairs = append(t.Pairs, row)
	}
	return t
}

// alone is the topology of one GPU: nobody need have asked.
func alone(uuid string) nvidia.Topology {
	return nvidia.Topology{UUIDs: []string{uuid}, Pairs: [][]nvidia.Pair{{{}}}}
}

// note says what a node alone knows, and how it is asked there; nothing on the node itself.
func (p place) note(what, command string) string {
	if !p.elsewhere {
		return ""
	}
	return fmt.Sprintf("%s are known on the node alone: %s there", what, command)
}
