package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
	"github.com/gpuslice/gpuslice/scheduler"
)

// call is a command with kubectl's connection flags.
type call struct {
	*cobra.Command
	node       local
	kubeconfig clientcmd.ClientConfig
}

// commonFlags are the connection flags that help texts list. The other flags of kubectl work, too.
var commonFlags = map[string]string{
	"context":         "Use the context `NAME` of the kubeconfig.",
	"cluster":         "Use the cluster `NAME` of the kubeconfig.",
	"user":            "Use the user `NAME` of the kubeconfig.",
	"namespace":       "Use `NAMESPACE` for names without one; default: that of the context.",
	"request-timeout": "Wait `TIME` for each answer of the API server, such as 5 (seconds) or 1m; 0: as long as it takes.",
	"as":              "Impersonate the user `NAME`.",
	"as-group":        "Impersonate the group `NAME`; can be repeated.",
}

// kubectlFlags adds kubectl's connection flags to a command.
func kubectlFlags(c *cobra.Command, node local) call {
	rules, overrides := clientcmd.NewDefaultClientConfigLoadingRules(), &clientcmd.ConfigOverrides{}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	clientcmd.BindOverrideFlags(overrides, flags, clientcmd.RecommendedConfigOverrideFlags(""))
	flags.VisitAll(func(f *pflag.Flag) {
		usage, common := commonFlags[f.Name]
		f.Hidden = !common
		f.Usage = cmp.Or(usage, f.Usage)
	})
	c.Flags().AddFlagSet(flags)
	c.Flags().StringVar(&rules.ExplicitPath, "kubeconfig", "", "Read the kubeconfig from `FILE`; default: KUBECONFIG, ~/.kube/config or the pod's service account.")
	called := call{c, node, clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)}
	_ = c.RegisterFlagCompletionFunc("context", called.completeContexts) // the flag exists
	return called
}

// componentFlags adds the flags of commands that send requests to agents or schedulers.
func componentFlags(c *cobra.Command, node local) call {
	called := kubectlFlags(c, node)
	c.Flags().String("system-namespace", "", "Send requests only to the agents and schedulers in `NAMESPACE`; default: the one of "+strings.Join(cluster.UsualNamespaces, ", ")+" that has them.")
	return called
}

func nodesFlags(c *cobra.Command, node local) call {
	called := componentFlags(c, node)
	if node != nil {
		c.Flags().Bool("all-nodes", false, "Show all nodes of the cluster. This is the default on a machine that has a kubeconfig and no state directory.")
	}
	return called
}

// namespaceFilter adds --all-namespaces, and makes --namespace a filter.
func namespaceFilter(c *cobra.Command) {
	c.Flags().Lookup("namespace").Usage = "Show only containers in `NAMESPACE`."
	c.Flags().BoolP("all-namespaces", "A", false, "Show containers in all namespaces. This is the default.")
}

func stateDir(c *cobra.Command) string { return c.Flags().Lookup("state-dir").Value.String() }

func (c call) connect() (*cluster.Cluster, error) {
	systemNamespace := ""
	if f := c.Flags().Lookup("system-namespace"); f != nil {
		systemNamespace = f.Value.String()
	}
	connection, err := cluster.Connect(c.kubeconfig, systemNamespace)
	return connection, work(err)
}

const requestTimeout = 30 * time.Second

// withCluster connects and runs a function within a timeout. Its errors are those of the work.
func (c call) withCluster(timeout time.Duration, do func(context.Context, *cluster.Cluster) error) error {
	connection, err := c.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), timeout)
	defer cancel()
	return work(do(ctx, connection))
}

func (c call) allNodes() bool {
	if c.node == nil {
		return true
	}
	all := c.Flags().Lookup("all-nodes")
	switch {
	case all.Changed:
		return all.Value.String() == "true"
	case c.Flags().Changed("state-dir"):
		return false
	}
	if _, err := os.Stat(stateDir(c.Command)); !os.IsNotExist(err) {
		return false
	}
	_, err := c.connect()
	return err == nil
}

// orCluster adds to the error of a machine without a state directory how to show the cluster. The call is one that shows the
// cluster if there is a connection.
func (c call) orCluster(err error) error {
	if !errors.Is(err, fs.ErrNotExist) || c.Flags().Changed("state-dir") || c.Flags().Changed("all-nodes") {
		return err
	}
	_, why := c.connect()
	if why == nil {
		return err
	}
	return fmt.Errorf("%w; for the cluster use kubectl %s (here: %w)", err, c.CommandPath(), why)
}

type reader func(context.Context) (view.Node, error)

// nodeReader returns the reader of what the call shows: this node, or all nodes of the cluster as one.
func (c call) nodeReader() (reader, error) {
	read := func(ctx context.Context) (view.Node, error) {
		n, err := c.node.view(ctx, stateDir(c.Command))
		return n, c.orCluster(err)
	}
	if c.allNodes() {
		connection, err := c.connect()
		if err != nil {
			return nil, err
		}
		read = connection.View
	}
	namespace, all := c.Flags().Lookup("namespace"), c.Flags().Lookup("all-namespaces")
	if !namespace.Changed || all.Value.String() == "true" {
		return read, nil
	}
	return func(ctx context.Context) (view.Node, error) {
		n, err := read(ctx)
		n.Containers = slices.DeleteFunc(n.Containers, func(c view.Container) bool {
			return !strings.HasPrefix(c.Pod, namespace.Value.String()+"/")
		})
		return n, err
	}, nil
}

func podName(text string) (namespace, pod, container string, err error) {
	name, container, _ := strings.Cut(text, ":")
	before, after, named := strings.Cut(name, "/")
	if named {
		namespace, name = before, after
	}
	if named && namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", "", fmt.Errorf("invalid pod name %q: use [NAMESPACE/]POD[:CONTAINER]", text)
	}
	return namespace, name, container, nil
}

// gpusOf describes a node's GPUs and their connections.
type gpusOf struct {
	Node     hardware.Node
	Topology hardware.Topology
}

type source struct {
	node view.Node
	gpus gpusOf
	// remote is true for a node of the cluster: the node's own files are not available.
	remote bool
}

var errNoNode = errors.New("no node given: add the argument NODE before the others")

// readSource reads the node of a call with the given number of names, or [NODE] in front of them. It returns the names.
func (c call) readSource(args []string, names int) (source, []string, error) {
	if len(args) == names {
		if c.node == nil {
			return source{}, nil, errNoNode
		}
		n, f, err := c.readFiles()
		return source{node: n, gpus: f}, args, err
	}
	s, err := c.readRemote(args[0])
	return s, args[1:], err
}

func (c call) readFiles() (view.Node, gpusOf, error) {
	dir := stateDir(c.Command)
	n, err := c.node.view(c.Context(), dir)
	if errors.Is(err, fs.ErrNotExist) && !c.Flags().Changed("state-dir") {
		err = fmt.Errorf("%w; for a node of the cluster use kubectl %s NODE", err, c.CommandPath())
	}
	if err != nil {
		return n, gpusOf{}, work(err)
	}
	f, err := c.node.hardware(dir)
	if err != nil {
		return n, f, work(fmt.Errorf("GPUs: %w", err))
	}
	if len(f.Node.GPUs) == 1 && len(f.Topology.UUIDs) == 0 {
		f.Topology = singleGPU(f.Node.GPUs[0].UUID)
	}
	return n, f, nil
}

func (c call) readRemote(name string) (s source, err error) {
	err = c.withCluster(requestTimeout, func(ctx context.Context, connection *cluster.Cluster) error {
		n, inventory, err := connection.Node(ctx, name)
		s = source{node: n, gpus: reportedGPUs(n, inventory), remote: true}
		return err
	})
	return s, err
}

// findRemote finds a container of the cluster by NAMESPACE/POD, NAMESPACE/POD:CONTAINER or NAMESPACE/POD/CONTAINER.
func (c call) findRemote(target string) (s source, found view.Container, err error) {
	if strings.Count(target, "/") == 2 && !strings.Contains(target, ":") {
		last := strings.LastIndex(target, "/")
		target = target[:last] + ":" + target[last+1:]
	}
	namespace, pod, container, err := podName(target)
	if err != nil {
		return s, found, err
	}
	name := ""
	err = c.withCluster(requestTimeout, func(ctx context.Context, connection *cluster.Cluster) (err error) {
		namespace = cmp.Or(namespace, connection.Namespace)
		name, err = connection.NodeOf(ctx, namespace, pod)
		return err
	})
	if err != nil {
		return s, found, err
	}
	if s, err = c.readRemote(name); err != nil {
		return s, found, err
	}
	target = namespace + "/" + pod
	ofPod := slices.DeleteFunc(slices.Clone(s.node.Containers), func(c view.Container) bool { return c.Pod != target })
	if container != "" {
		target += ":" + container
	}
	found, err = findContainer(ofPod, target)
	if err != nil && len(ofPod) == 0 {
		err = fmt.Errorf("node %s reports no container of pod %s with a share: check the pod with kubectl gpuslice explain", name, target)
	}
	if err != nil && len(s.node.Problems) > 0 {
		err = fmt.Errorf("%w; %s", err, term.Clean(strings.Join(s.node.Problems, "; ")))
	}
	return s, found, work(err)
}

// reportedGPUs are a node's GPUs as its agent and its Node object report them.
func reportedGPUs(n view.Node, reported scheduler.Inventory) gpusOf {
	f := gpusOf{Node: hardware.Node{DriverVersion: n.DriverVersion, CUDAVersion: n.CUDAVersion}}
	numa := map[string]int{}
	for _, gpu := range reported.GPUs {
		numa[gpu.UUID] = gpu.NUMA
	}
	at := map[int]int{} // by index
	for _, c := range n.GPUs {
		if c.MIGProfile != "" {
			continue
		}
		gpu := hardware.GPU{UUID: c.UUID, Index: c.Index, Model: c.Model, MemoryMiB: c.MemoryMiB, NUMANode: hardware.NUMAUnknown}
		if of, known := numa[c.UUID]; known && of != scheduler.NUMAUnknown {
			gpu.NUMANode = of
		}
		at[c.Index] = len(f.Node.GPUs)
		f.Node.GPUs = append(f.Node.GPUs, gpu)
	}
	for _, c := range n.GPUs {
		if i, known := at[c.Index]; known && c.MIGProfile != "" {
			gpu := &f.Node.GPUs[i]
			gpu.MIG = append(gpu.MIG, hardware.MIGDevice{UUID: c.UUID, GPU: gpu.UUID, Profile: c.MIGProfile, MemoryMiB: c.MemoryMiB})
		}
	}
	slices.SortStableFunc(f.Node.GPUs, func(a, b hardware.GPU) int { return cmp.Compare(a.Index, b.Index) })
	f.Topology = reportedTopology(reported)
	if len(f.Node.GPUs) == 1 {
		f.Topology = singleGPU(f.Node.GPUs[0].UUID)
	}
	return f
}

// reportedTopology returns the topology by the scores of the connections (hardware.Pair.Score); empty if not reported.
func reportedTopology(reported scheduler.Inventory) (t hardware.Topology) {
	if len(reported.Links) != len(reported.GPUs) {
		return t
	}
	for i, gpu := range reported.GPUs {
		t.UUIDs = append(t.UUIDs, gpu.UUID)
		row := make([]hardware.Pair, len(reported.GPUs))
		for j := range row {
			if i != j && j < len(reported.Links[i]) {
				row[j] = hardware.PairOf(reported.Links[i][j])
			}
		}
		t.Pairs = append(t.Pairs, row)
	}
	return t
}

func singleGPU(uuid string) hardware.Topology {
	return hardware.Topology{UUIDs: []string{uuid}, Pairs: [][]hardware.Pair{{{}}}}
}

// note describes what only the node itself reports, and the command for it; empty on the node itself.
func (s source) note(what, command string) string {
	if !s.remote {
		return ""
	}
	return fmt.Sprintf("only the node itself reports %s: run %s there", what, command)
}
