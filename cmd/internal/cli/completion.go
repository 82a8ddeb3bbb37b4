package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
	"github.com/gpuslice/gpuslice/cmd/internal/config"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/monitor/view"
)

var shells = []string{"bash", "zsh", "fish"}

func completionCommand(node local) *cobra.Command {
	c := &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print the completion script for a shell",
		Long: `Prints the completion script for a shell: for commands, options, and this node's
containers and GPUs, which it reads from the agent's state directory.

  bash  gpuslice completion bash >/etc/bash_completion.d/gpuslice
        (requires the package bash-completion)
  zsh   gpuslice completion zsh >"${fpath[1]}/_gpuslice"
  fish  gpuslice completion fish >~/.config/fish/completions/gpuslice.fish

Exit status: 0 success; 1 failure; 2 invalid usage.`,
		Example:               "  source <(gpuslice completion bash)",
		Args:                  cobra.ExactArgs(1),
		ValidArgs:             shells,
		DisableFlagsInUseLine: true,
		RunE: func(c *cobra.Command, args []string) error {
			root, w := c.Root(), c.OutOrStdout()
			scripts := map[string]func(io.Writer) error{
				"bash": func(w io.Writer) error { return root.GenBashCompletionV2(w, true) },
				"zsh":  root.GenZshCompletion,
				"fish": func(w io.Writer) error { return root.GenFishCompletion(w, true) },
			}
			script, known := scripts[args[0]]
			if !known {
				return fmt.Errorf("unknown shell %q: use %s", args[0], oneOf(shells))
			}
			return work(script(w))
		},
	}
	if node == nil {
		c.Long, c.Example = pluginCompletion, "  source <(kubectl gpuslice completion bash)"
	}
	return c
}

const pluginCompletion = `Prints the completion script for a shell, for calls of kubectl-gpuslice itself.

kubectl completes "kubectl gpuslice" by the program kubectl_complete-gpuslice on
the PATH. That is this program, by a link or a copy with that name:

  ln -s kubectl-gpuslice "$(dirname "$(command -v kubectl-gpuslice)")"/kubectl_complete-gpuslice

It completes commands, options, nodes, GPUs and pods of the cluster.

Exit status: 0 success; 1 failure; 2 invalid usage.`

// completionTimeout bounds a request of a completion: a person waits for it.
var completionTimeout = 3 * time.Second

// completeLocal completes with what the node's files have.
func (c call) completeLocal(args []string, find func(stateDir string) ([]cobra.Completion, error)) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 || config.Fill(c.Flags(), "", variables, os.LookupEnv) != nil { // a completion has not filled them
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	found, err := find(stateDir(c.Command))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completeRemote completes with names of the cluster. A word NAMESPACE/… selects the namespace.
func (c call) completeRemote(word string, find func(ctx context.Context, connection *cluster.Cluster, namespace string) ([]string, error)) ([]cobra.Completion, cobra.ShellCompDirective) {
	var found []cobra.Completion
	_ = c.withCluster(completionTimeout, func(ctx context.Context, connection *cluster.Cluster) error {
		namespace, _, named := strings.Cut(word, "/")
		if !named {
			namespace = connection.Namespace
		}
		names, err := find(ctx, connection, namespace)
		for _, name := range names {
			if named {
				name = namespace + "/" + name
			}
			if strings.HasPrefix(name, word) {
				found = append(found, term.Clean(name))
			}
		}
		return err
	}) // an error can't be shown
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completeContainers completes the argument of describe container.
func (c call) completeContainers(_ *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return c.containersLike(args, word, fullName)
}

// completeResizable completes the argument of resize.
func (c call) completeResizable(_ *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return c.containersLike(args, word, func(c view.Container) string {
		if c.Pod == "" {
			return c.ContainerID
		}
		return c.Pod + ":" + c.Name
	})
}

func (c call) containersLike(args []string, word string, name func(view.Container) string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if c.node == nil {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.completeRemote(word, func(ctx context.Context, connection *cluster.Cluster, namespace string) ([]string, error) {
			return connection.Sharing(ctx, namespace)
		})
	}
	return c.completeLocal(args, func(stateDir string) (found []cobra.Completion, err error) {
		n, err := c.node.view(c.Context(), stateDir)
		for _, c := range n.Containers {
			names := []string{name(c)}
			if c.ContainerID != names[0] && (word != "" || c.Pod == "") {
				names = append(names, c.ContainerID)
			}
			for _, name := range names {
				if strings.HasPrefix(name, word) {
					found = append(found, cobra.CompletionWithDesc(term.Clean(name), c.State))
				}
			}
		}
		return found, err
	})
}

// completePods completes the argument of explain and defrag.
func (c call) completePods(_ *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.completeRemote(word, func(ctx context.Context, connection *cluster.Cluster, namespace string) ([]string, error) {
		return connection.Pods(ctx, namespace)
	})
}

// completeNodes completes an argument NODE.
func (c call) completeNodes(_ *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.completeRemote(word, func(ctx context.Context, connection *cluster.Cluster, _ string) ([]string, error) {
		return connection.NodesWithGPUs(ctx)
	})
}

// completeGPUs completes NODE GPU, or GPU on a node.
func (c call) completeGPUs(of *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	switch {
	case len(args) == 1:
		return c.completeRemote(word, func(ctx context.Context, connection *cluster.Cluster, _ string) (names []string, err error) {
			gpus, err := connection.GPUs(ctx, args[0])
			for _, gpu := range gpus {
				names = append(names, strconv.Itoa(gpu.Index), gpu.UUID)
			}
			return names, err
		})
	case c.node == nil:
		return c.completeNodes(of, args, word)
	}
	return c.completeLocal(args, func(stateDir string) (found []cobra.Completion, err error) {
		add := func(name, what string) {
			if strings.HasPrefix(name, word) {
				found = append(found, cobra.CompletionWithDesc(name, term.Clean(what)))
			}
		}
		f, err := c.node.hardware(stateDir)
		for _, gpu := range f.Node.GPUs {
			add(strconv.Itoa(gpu.Index), gpu.Model)
			add(gpu.UUID, gpu.Model)
			for _, d := range gpu.MIG {
				add(d.UUID, gpu.Model+" MIG "+d.Profile)
			}
		}
		return found, err
	})
}

// completeContexts completes --context.
func (c call) completeContexts(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	config, err := c.kubeconfig.RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.Sorted(maps.Keys(config.Contexts)), cobra.ShellCompDirectiveNoFileComp
}
