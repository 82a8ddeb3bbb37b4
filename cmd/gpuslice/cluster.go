package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// calledAs is the name that the program was called by. kubectl calls kubectl-gpuslice for
// "kubectl gpuslice"; it is the same program.
var calledAs = filepath.Base(os.Args[0])

// isPlugin says whether kubectl has called.
func isPlugin() bool { return strings.HasPrefix(calledAs, "kubectl-gpuslice") }

// addClusterCommands adds what changes things, on the node or in the cluster.
func addClusterCommands(c *cobra.Command) {
	c.AddCommand(resizeCommand(), cordonCommand(), uncordonCommand(), drainCommand(), explainCommand())
	if isPlugin() {
		c.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl gpuslice"}
	}
}

// clusterFlags gives a command the flags that say which cluster, as kubectl has them.
func clusterFlags(c *cobra.Command) {
	f := c.Flags()
	f.String("kubeconfig", "", "`file` that says how to reach the API server; empty is KUBECONFIG, ~/.kube/config or the pod's service account")
	f.String("context", "", "`name` of the context in the kubeconfig; empty is its current one")
	f.StringP("namespace", "n", "", "`namespace` of what is named without one; empty is the context's")
}

// askFlags gives a command that asks agents or schedulers the flags that say which.
func askFlags(c *cobra.Command) {
	clusterFlags(c)
	c.Flags().String("system-namespace", "", "`namespace` that gpuslice is installed in, whose agents and schedulers alone are asked; empty is the one of "+strings.Join(cluster.UsualNamespaces, ", ")+" that has any")
}

// wideFlag gives a command that shows a node --cluster.
func wideFlag(c *cobra.Command) {
	askFlags(c)
	c.Flags().Bool("cluster", false, "show all nodes of the cluster, by the API server; so it is too as kubectl gpuslice, and where there is no state directory and a kubeconfig")
}

func clusterOptions(c *cobra.Command) (o cluster.Options) {
	text := func(name string) string {
		if f := c.Flags().Lookup(name); f != nil {
			return f.Value.String()
		}
		return ""
	}
	return cluster.Options{Kubeconfig: text("kubeconfig"), Context: text("context"), Namespace: text("namespace"), SystemNamespace: text("system-namespace")}
}

func connect(c *cobra.Command) (*cluster.Cluster, error) { return cluster.Connect(clusterOptions(c)) }

// isWide says whether the cluster is meant and not this node: where --cluster says so; if
// kubectl has called; or where this machine has no state directory, none was named, and there
// is a way to a cluster.
func isWide(c *cobra.Command) (bool, error) {
	if c.Flags().Lookup("cluster") == nil { // it is about this node's own files
		return false, nil
	}
	if c.Flags().Changed("cluster") {
		return c.Flags().GetBool("cluster")
	}
	if c.Flags().Changed("state-dir") {
		return false, nil
	}
	if isPlugin() {
		return true, nil
	}
	stateDir, err := c.Flags().GetString("state-dir")
	if err != nil {
		return false, err
	}
	if _, err := os.Stat(stateDir); !os.IsNotExist(err) {
		return false, nil
	}
	return cluster.Found(clusterOptions(c)), nil
}

// nodeReader reads what is to be shown: this node, or all of the cluster's as one.
func nodeReader(c *cobra.Command) (reader, error) {
	wide, err := isWide(c)
	if err != nil {
		return nil, err
	}
	if wide {
		connection, err := connect(c)
		if err != nil {
			return nil, work(err)
		}
		return connection.View, nil
	}
	stateDir, err := c.Flags().GetString("state-dir")
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (view.Node, error) { return view.Read(ctx, stateDir) }, nil
}

// podName splits [NAMESPACE/]POD[:CONTAINER]; the namespace is empty where none is named. It needs no
// connection: what is wrong with a call is said before anybody is asked.
func podName(text string) (namespace, pod, container string, err error) {
	name, container, _ := strings.Cut(text, ":")
	before, after, named := strings.Cut(name, "/")
	if named {
		namespace, name = before, after
	}
	if named && namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", "", fmt.Errorf("%q: want [NAMESPACE/]POD[:CONTAINER]", text)
	}
	return namespace, name, container, nil
}
