package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/wire"
)

const maxRequests = 16

// View returns the GPUs and containers of the cluster, each with the name of its node. Without an agent's answer,
// GPUs come from the Node object.
func (c *Cluster) View(ctx context.Context) (view.Node, error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return view.Node{}, fmt.Errorf("list the cluster's nodes: %w", err)
	}
	all := view.Node{Name: "cluster", GPUs: []view.GPU{}, Containers: []view.Container{}}
	agents, others, err := c.servers(ctx, componentAgent)
	switch {
	case errors.Is(err, errNotFound):
		all.Problems = append(all.Problems, fmt.Sprintf("%v; use is not known, GPUs are shown by their Node objects, and grants by annotations", err))
	case err != nil:
		return view.Node{}, err
	case len(others) > 0:
		all.Problems = append(all.Problems, fmt.Sprintf("ignored pods with the labels of gpuslice's agent outside of its namespace %s: %s", agents[0].Namespace, some(others)))
	}
	byNode := map[string][]*v1.Pod{}
	for i := range agents {
		byNode[agents[i].Spec.NodeName] = append(byNode[agents[i].Spec.NodeName], &agents[i])
	}
	answers := make([]view.Node, len(nodes.Items))
	workqueue.ParallelizeUntil(context.WithoutCancel(ctx), maxRequests, len(answers), func(i int) {
		answers[i] = c.node(ctx, &nodes.Items[i], byNode[nodes.Items[i].Name], err == nil)
	})
	problem := c.fill(ctx, "", answers, func(i int) (string, []scheduler.GPU) {
		inventory, _, _ := wire.DecodeNode(convert.Node(&nodes.Items[i])) // node reports the error
		return nodes.Items[i].Name, inventory.GPUs
	})
	if problem != nil {
		all.Problems = append(all.Problems, problem.Error())
	}
	for i, answer := range answers {
		all.Add(nodes.Items[i].Name, answer)
	}
	slices.SortStableFunc(all.Containers, func(a, b view.Container) int { return strings.Compare(a.Pod, b.Pod) })
	return all, nil
}

// node returns the view of a node. agents are its pods of the agent; agentsKnown is false if the search failed.
func (c *Cluster) node(ctx context.Context, node *v1.Node, agents []*v1.Pod, agentsKnown bool) view.Node {
	inventory, skipped, unread := wire.DecodeNode(convert.Node(node))
	n := c.answer(ctx, inventory.GPUs, agents, agentsKnown)
	// Only the Node object has the cluster's cordons.
	for _, gpu := range inventory.GPUs {
		for i := range n.GPUs {
			n.GPUs[i].Cordoned = n.GPUs[i].Cordoned || gpu.Cordoned && gpu.UUID == n.GPUs[i].UUID
		}
	}
	if unread != nil {
		n.Problems = append(n.Problems, fmt.Sprintf("GPUs in its Node object cannot be read: %v", unread))
	}
	if skipped != nil {
		n.Problems = append(n.Problems, fmt.Sprintf("its Node object: %v", skipped))
	}
	marks := cordonsOf(node).marks
	for _, uuid := range slices.Sorted(maps.Keys(marks)) {
		if by := marks[uuid]; by.left() {
			n.Problems = append(n.Problems, fmt.Sprintf("GPU %s is still cordoned by a defrag of pod %s, which has ended: kubectl gpuslice uncordon %s %s", uuid, by.Pod, node.Name, uuid))
		}
	}
	if len(agents) > 1 && readiness(agents[1]) == 0 {
		n.Problems = append(n.Problems, fmt.Sprintf("several agents are ready (pods %s); the first one is used", some(names(agents))))
	}
	return n
}

// answer returns the view of the first agent, or the registered GPUs.
func (c *Cluster) answer(ctx context.Context, registered []scheduler.GPU, agents []*v1.Pod, agentsKnown bool) (n view.Node) {
	if len(agents) > 0 {
		agent := agents[0]
		err := c.request(ctx, agent, portMetrics, "/api/v1/view", nil, &n)
		if err == nil {
			return n
		}
		n = view.Node{Problems: []string{fmt.Sprintf("its agent (pod %s/%s) does not answer: %v; use is not known, and grants are those of annotations", agent.Namespace, agent.Name, err)}}
	} else if agentsKnown && len(registered) > 0 {
		n.Problems = []string{"it has no pod of gpuslice's agent: use is not known, and grants are those of annotations"}
	}
	for _, gpu := range registered {
		shown := view.GPU{
			UUID: gpu.UUID, Index: gpu.Index, Model: gpu.Model, MemoryMiB: gpu.MemoryMiB,
			GrantableMiB: gpu.MemoryMiB, GrantableCores: gpu.Cores, GrantableReplicas: gpu.Replicas, Healthy: gpu.Healthy,
			UseUnknown: true, GrantsUnknown: true,
		}
		if !gpu.Healthy {
			shown.Unhealthy = "by its Node object; the reason is in the log of its node's agent"
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

// Node returns the view of one node, and the GPUs with their connections by its Node object.
func (c *Cluster) Node(ctx context.Context, name string) (view.Node, scheduler.Inventory, error) {
	node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return view.Node{}, scheduler.Inventory{}, fmt.Errorf("node %s: %w", name, err)
	}
	agents, _, lost := c.servers(ctx, componentAgent)
	if lost != nil && !errors.Is(lost, errNotFound) {
		return view.Node{}, scheduler.Inventory{}, lost
	}
	var here []*v1.Pod
	for i := range agents {
		if agents[i].Spec.NodeName == name {
			here = append(here, &agents[i])
		}
	}
	n := c.node(ctx, node, here, lost == nil)
	if lost != nil {
		n.Problems = append(n.Problems, lost.Error())
	}
	n.Name = name
	inventory, _, err := wire.DecodeNode(convert.Node(node))
	if err != nil {
		inventory = scheduler.Inventory{}
	}
	answers := []view.Node{n}
	problem := c.fill(ctx, name, answers, func(int) (string, []scheduler.GPU) { return name, inventory.GPUs })
	n = answers[0]
	if problem != nil {
		n.Problems = append(n.Problems, problem.Error())
	}
	return n, inventory, nil
}

// fill sets what is granted of the GPUs of nodes without an agent's answer: by the annotations of pods, and by the Node
// objects for containers that no scheduler placed. Empty: the pods of all nodes are read.
func (c *Cluster) fill(ctx context.Context, node string, answers []view.Node, registered func(i int) (name string, gpus []scheduler.GPU)) error {
	silent := func(n view.Node) bool {
		return slices.ContainsFunc(n.GPUs, func(gpu view.GPU) bool { return gpu.GrantsUnknown })
	}
	if !slices.ContainsFunc(answers, silent) {
		return nil
	}
	pods, unread := c.placed(ctx, metav1.NamespaceAll, node)
	if pods == nil && unread != nil {
		return fmt.Errorf("what is granted on nodes without an answer is not known: %w", unread)
	}
	for i := range answers {
		if silent(answers[i]) {
			name, gpus := registered(i)
			grantedTo(&answers[i], name, gpus, pods)
		}
	}
	return unread
}

func grantedTo(n *view.Node, name string, registered []scheduler.GPU, pods []placedPod) {
	granted := map[string]scheduler.Use{}
	for _, gpu := range registered {
		granted[gpu.UUID] = gpu.Others
	}
	for _, p := range pods {
		if p.node != name {
			continue
		}
		for uuid, use := range scheduler.Uses(p.pod.Containers, p.placement.Containers) {
			granted[uuid] = granted[uuid].Add(use)
		}
		for i, shares := range p.placement.Containers {
			if len(shares) == 0 || i >= len(p.pod.Containers) {
				continue
			}
			shown := view.Container{Pod: p.pod.Namespace + "/" + p.pod.Name, PodUID: p.pod.UID, Name: p.pod.Containers[i].Name, State: api.StateGranted}
			for _, s := range shares {
				shown.Shares = append(shown.Shares, view.Share{UUID: s.UUID, MemoryMiB: s.MemoryMiB, CorePercent: s.CorePercent, UseUnknown: true})
			}
			n.Containers = append(n.Containers, shown)
		}
	}
	for i := range n.GPUs {
		gpu := &n.GPUs[i]
		use := granted[gpu.UUID]
		gpu.GrantedMemoryMiB, gpu.GrantedCores, gpu.GrantedContainers, gpu.GrantsUnknown = use.MemoryMiB, use.Cores, use.Replicas, false
	}
}

func (c *Cluster) NodeOf(ctx context.Context, namespace, pod string) (string, error) {
	p, err := c.client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("pod %s/%s not found: check the namespace", namespace, pod)
	case err != nil:
		return "", fmt.Errorf("pod %s/%s: %w", namespace, pod, err)
	case p.Spec.NodeName == "":
		return "", fmt.Errorf("pod %s/%s is not scheduled: run kubectl gpuslice explain %s/%s", namespace, pod, namespace, pod)
	}
	return p.Spec.NodeName, nil
}

// Explanation is the scheduler's explanation of a pod's state.
type Explanation struct {
	engine.Explanation
	// Scheduled is the message of the pod's condition PodScheduled, by kube-scheduler.
	Scheduled string `json:"scheduled,omitempty"`
	// ResourceClaims are the pod's; UnknownClaims is why they could not be read.
	ResourceClaims []ResourceClaim `json:"resourceClaims,omitempty"`
	UnknownClaims  string          `json:"unknownClaims,omitempty"`
	// Holds are the GPUs that a kernel of the pod holds beyond its share, by the node's agent.
	Holds []Hold `json:"holds,omitempty"`
}

// Hold is view.Share.HoldsSince of a container.
type Hold struct {
	Container string    `json:"container"`
	GPU       string    `json:"gpu"`
	Since     time.Time `json:"since"`
}

// Explain requests the explanation of a pod from the schedulers.
func (c *Cluster) Explain(ctx context.Context, namespace, name string) (Explanation, error) {
	var x Explanation
	pod, err := c.Pod(ctx, namespace, name)
	if err != nil {
		return x, err
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodScheduled && condition.Status != v1.ConditionTrue {
			x.Scheduled = condition.Message
		}
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		if x.ResourceClaims, err = c.resourceClaims(ctx, pod); err != nil {
			x.UnknownClaims = err.Error()
		}
	}
	servers, _, err := c.servers(ctx, componentScheduler)
	if err != nil && len(pod.Spec.ResourceClaims) > 0 { // they need no scheduler of gpuslice
		x.Explanation = engine.Explanation{Pod: namespace + "/" + name, UID: string(pod.UID), State: engine.ExplainedNone, Text: byClaims, Node: pod.Spec.NodeName}
		return x, nil
	}
	if err != nil {
		return x, err
	}
	var failed error
	answered := false
	for i := range servers {
		var one engine.Explanation
		err := c.request(ctx, &servers[i], portHTTP, "/debug/explain", map[string]string{"namespace": namespace, "pod": name}, &one)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("scheduler %s/%s: %w", servers[i].Namespace, servers[i].Name, err))
			continue
		}
		// Only the leading replica has its own decisions.
		if better := one.Choice != nil || one.State == engine.ExplainedReserved; !answered || better {
			x.Explanation = one
		}
		if len(pod.Spec.ResourceClaims) > 0 && one.State == engine.ExplainedNone {
			x.Text = byClaims
		}
		answered = true
	}
	if answered {
		failed = nil
		if pod.Spec.NodeName != "" {
			x.Holds = c.holds(ctx, pod)
		}
	}
	return x, failed
}

const byClaims = "it has ResourceClaims, which kube-scheduler allocates"

// holds returns nothing if the node's agent does not answer: the scheduler's explanation is right without it.
func (c *Cluster) holds(ctx context.Context, pod *v1.Pod) (found []Hold) {
	agents, _, err := c.servers(ctx, componentAgent)
	i := slices.IndexFunc(agents, func(agent v1.Pod) bool { return agent.Spec.NodeName == pod.Spec.NodeName })
	if err != nil || i < 0 {
		return nil
	}
	var n view.Node
	if err := c.request(ctx, &agents[i], portMetrics, "/api/v1/view", nil, &n); err != nil {
		return nil
	}
	for _, container := range n.Containers {
		for _, s := range container.Shares {
			if container.PodUID == string(pod.UID) && !s.HoldsSince.IsZero() {
				found = append(found, Hold{container.Name, s.UUID, s.HoldsSince})
			}
		}
	}
	return found
}
