package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/kube"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

// mostAtOnce bounds how many agents are asked at a time.
const mostAtOnce = 16

// View is the cluster's GPUs and containers, as one node's: each GPU and container says
// which node it is on. What agents don't tell, the Node objects do, as far as they
// know: which GPUs there are. An error is of the API server; what else is missing is among the problems.
func (c *Cluster) View(ctx context.Context) (view.Node, error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return view.Node{}, fmt.Errorf("list the cluster's nodes: %w", err)
	}
	all := view.Node{Name: "cluster", GPUs: []view.GPU{}, Containers: []view.Container{}}
	agents, others, err := c.servers(ctx, componentAgent)
	switch {
	case errors.Is(err, errNotFound):
		all.Problems = append(all.Problems, fmt.Sprintf("%v. What is in use isn't known; GPUs are shown as their Node objects have them", err))
	case err != nil:
		return view.Node{}, err
	case len(others) > 0:
		all.Problems = append(all.Problems, fmt.Sprintf("pods outside of gpuslice's namespace %s have the labels of its agent, and were not asked: %s", agents[0].Namespace, some(others)))
	}
	byNode := map[string][]*v1.Pod{}
	for i := range agents {
		byNode[agents[i].Spec.NodeName] = append(byNode[agents[i].Spec.NodeName], &agents[i])
	}
	answers := make([]view.Node, len(nodes.Items))
	var waiting sync.WaitGroup
	slots := make(chan struct{}, mostAtOnce)
	for i := range nodes.Items {
		waiting.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			answers[i] = c.node(ctx, &nodes.Items[i], byNode[nodes.Items[i].Name], err == nil)
		})
	}
	waiting.Wait()
	for i, answer := range answers {
		all.Add(nodes.Items[i].Name, answer)
	}
	slices.SortStableFunc(all.Containers, func(a, b view.Container) int { return strings.Compare(a.Pod, b.Pod) })
	return all, nil
}

// node is one node's view: by its agent or, without an answer, by what the Node object says. Its agents are the
// pods that run on it, ready ones first; agentsKnown says that none means that there is none.
func (c *Cluster) node(ctx context.Context, node *v1.Node, agents []*v1.Pod, agentsKnown bool) view.Node {
	inventory, _, unread := wire.DecodeNode(kube.Node(node))
	n := c.answer(ctx, inventory.GPUs, agents, agentsKnown)
	// What an operator wants of a GPU (kubectl gpuslice cordon) is in the Node object alone.
	for _, told := range inventory.GPUs {
		for i := range n.GPUs {
			n.GPUs[i].Cordoned = n.GPUs[i].Cordoned || told.Cordoned && told.UUID == n.GPUs[i].UUID
		}
	}
	if unread != nil {
		n.Problems = append(n.Problems, fmt.Sprintf("what its Node object tells of GPUs can't be read: %v", unread))
	}
	if len(agents) > 1 && readiness(agents[1]) == 0 {
		n.Problems = append(n.Problems, fmt.Sprintf("it has more than one agent that is ready (pods %s), and the first was asked", some(names(agents))))
	}
	return n
}

// answer is what the first of the node's agents says, or what is known without.
func (c *Cluster) answer(ctx context.Context, registered []scheduler.GPU, agents []*v1.Pod, agentsKnown bool) (n view.Node) {
	if len(agents) > 0 {
		agent := agents[0]
		err := c.ask(ctx, agent, portMetrics, "/api/v1/view", nil, &n)
		if err == nil {
			return n
		}
		n = view.Node{Problems: []string{fmt.Sprintf("its agent (pod %s/%s) doesn't answer: %v", agent.Namespace, agent.Name, err)}}
	} else if agentsKnown && len(registered) > 0 {
		n.Problems = []string{"it has no pod of gpuslice's agent that could be asked: what is in use there isn't known"}
	}
	for _, gpu := range registered {
		shown := view.GPU{
			UUID: gpu.UUID, Index: gpu.Index, Model: gpu.Model, MemoryMiB: gpu.MemoryMiB,
			GrantableMiB: gpu.MemoryMiB, GrantableCores: gpu.Cores, GrantableSlots: gpu.Slots, Healthy: gpu.Healthy,
		}
		if !gpu.Healthy {
			shown.Unhealthy = "its Node object says so; why, its node's agent knows"
		}
		n.GPUs = append(n.GPUs, shown)
	}
	return n
}

func names(pods []*v1.Pod) (list []string) {
	for _, p := range pods {
		list = append(list, p.Namespace+"/"+p.Name)
	}
	return list
}
