package plugin

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// kube-scheduler changes its NodeInfos in place, and makes new ones: whatever it does between two cycles, what is known of the nodes is
// what a first look at them shows.
func TestInformerSyncIsAsAFirstLook(t *testing.T) {
	w := newWorld(t, "")
	random := rand.New(rand.NewPCG(1, 2))
	generation := int64(0)
	fresh := func() *nodeInfo {
		generation++
		n := &nodeInfo{generation: generation}
		n.node = gpuNode(fmt.Sprintf("n%d", random.IntN(20)), 1, 0)
		for range random.IntN(2) {
			n.node.Status.Images = append(n.node.Status.Images, v1.ContainerImage{Names: []string{fmt.Sprint("image", random.IntN(3))}})
		}
		return n
	}
	var nodes []fwk.NodeInfo
	sync := newInformerSync(w.feed)
	for range 5000 {
		i := random.IntN(len(nodes) + 1)
		switch kind := random.IntN(5); {
		case kind == 0:
			n := fresh()
			named := func(other fwk.NodeInfo) bool { return other.Node() != nil && other.Node().Name == n.node.Name }
			if !slices.ContainsFunc(nodes, named) {
				nodes = append(nodes[:i:i], append([]fwk.NodeInfo{n}, nodes[i:]...)...)
			}
		case i == len(nodes):
		case kind == 1:
			nodes = append(nodes[:i:i], nodes[i+1:]...)
		case kind == 2: // in place
			generation++
			nodes[i].(*nodeInfo).generation = generation
			nodes[i].(*nodeInfo).pods = []*v1.Pod{plainPod(fmt.Sprint("p", generation))}
		case kind == 3: // another NodeInfo of the same node, as it was
			same := *nodes[i].(*nodeInfo)
			nodes[i] = &same
		case kind == 4: // deleted with pods left, in place
			generation++
			nodes[i].(*nodeInfo).generation, nodes[i].(*nodeInfo).node = generation, nil
		}
		first := newInformerSync(w.feed)
		first.update(nodes)
		sync.update(nodes)
		require.True(t, slices.EqualFunc(first.order, sync.order, func(a, b *seenNode) bool { return reflect.DeepEqual(a, b) }))
		require.Equal(t, first.nodes, sync.nodes)
		for name, n := range first.images {
			require.Equal(t, n, sync.images[name])
		}
	}
}
