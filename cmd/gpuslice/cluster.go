package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// calledAs is the name of the program in this call: kubectl runs kubectl-gpuslice for "kubectl gpuslice".
var calledAs = filepath.Base(os.Args[0])

func isPlugin() bool { return strings.HasPrefix(calledAs, "kubectl-gpuslice") }

// call is a command with kubectl's connection flags.
type call struct {
	*cobra.Command
	kubeconfig clientcmd.ClientConfig
}

// commonFlags are the connection flags that help texts list. The other flags of kubectl work, too.
var commonFlags = map[string]string{
	"context":   "Use the context `NAME` of the kubeconfig.",
	"cluster":   "Use the cluster `NAME` of the kubeconfig.",
	"user":      "Use the user `NAME` of the kubeconfig.",
	"namespace": "Use `NAMESPACE` for names without one; default: that of the context.",
	"as":        "Impersonate the user `NAME`.",
	"as-group":  "Impersonate the group `NAME`; can be repeated.",
}

// kubectlFlags adds kubectl's connection flags to a command.
func kubectlFlags(c *cobra.Command) call {
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
	return call{c, clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)}
}

// componentFlags adds the flags of commands that send requests to agents or schedulers.
func componentFlags(c *cobra.Command) call {
	called := kubectlFlags(c)
	c.Flags().String("system-namespace", "", "Send requests only to the agents and schedulers in `NAMESPACE`; default: the one of "+strings.Join(cluster.UsualNamespaces, ", ")+" that has them.")
	return called
}

func nodesFlags(c *cobra.Command) call {
	called := componentFlags(c)
	c.Flags().Bool("all-nodes", false, "Show all nodes of the cluster. This is the default for kubectl gpuslice, and on a machine that has a kubeconfig and no state directory.")
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
	all := c.Flags().Lookup("all-nodes")
	switch {
	case all.Changed:
		return all.Value.String() == "true"
	case c.Flags().Changed("state-dir"):
		return false
	case isPlugin():
		return true
	}
	if _, err := os.Stat(stateDir(c.Command)); !os.IsNotExist(err) {
		return false
	}
	_, err := c.connect()
	return err == nil
}

type reader func(context.Context) (view.Node, error)

// nodeReader returns the reader of what the call shows: this node, or all nodes of the cluster as one.
func (c call) nodeReader() (reader, error) {
	read := func(ctx context.Context) (view.Node, error) { return view.Read(ctx, stateDir(c.Command)) }
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
