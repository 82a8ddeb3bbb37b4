package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// mostAtOnce bounds how many agents are asked at a time.
const mostAtOnce = 16

// View is the cluster's cards and containers, as one node's: each card and container says
// which node it is on. What agents don't tell, the Node objects do, as far as they
// know: which cards there are. An error is of the API server; what else is missing is among the problems.
func (c *Cluster) View(ctx context.Context) (view.Node, error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return view.Node{}, fmt.Errorf("list the cluster's nodes: %w", err)
	}
	agents, err := c.servers(ctx, componentAgent)
	if err != nil {
		return view.Node{}, err
	}
	byNode := map[string]*v1.Pod{}
	for i := range agents {
		if byNode[agents[i].Spec.NodeName] == nil {
			byNode[agents[i].Spec.NodeName] = &agents[i]
		}
	}
	answers := make([]view.Node, len(nodes.Items))
	var waiting sync.WaitGroup
	slots := make(chan struct{}, mostAtOnce)
	for i := range nodes.Items {
		waiting.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			answers[i] = c.node(ctx, &nodes.Items[i], byNode[nodes.Items[i].Name])
		})
	}
	waiting.Wait()
	all := view.Node{Name: "cluster", Cards: []view.Card{}, Containers: []view.Container{}}
	for i, answer := range answers {
		all.Add(nodes.Items[i].Name, answer)
	}
	slices.SortStableFunc(all.Containers, func(a, b view.Container) int { return strings.Compare(a.Pod, b.Pod) })
	return all, nil
}

// node is one node's view: by its agent or, without an answer, by what the Node object says.
func (c *Cluster) node(ctx context.Context, node *v1.Node, agent *v1.Pod) (n view.Node) {
	inventory, _, err := wire.ReadNode(kube.Node(node))
	registered := err == nil && len(inventory.Cards) > 0
	if agent != nil {
		if err = c.ask(ctx, agent, portMetrics, "/api/v1/view", nil, &n); err == nil {
			return n
		}
		n = view.Node{Problems: []string{fmt.Sprintf("its agent (pod %s/%s) doesn't answer: %v", agent.Namespace, agent.Name, err)}}
	} else if registered {
		n.Problems = []string{"it has no pod of gpuslice's agent that could be asked: what is in use there isn't known"}
	}
	for _, card := range inventory.Cards {
		n.Cards = append(n.Cards, view.Card{
			UUID: card.UUID, Index: card.Index, Model: card.Model, MemoryMiB: card.MemoryMiB,
			GrantableMiB: card.MemoryMiB, GrantableCores: card.Cores, GrantableSlots: card.Slots, Healthy: card.Healthy,
		})
	}
	return n
}
