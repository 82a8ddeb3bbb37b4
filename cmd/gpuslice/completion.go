package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/config"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/monitor/view"
)

var shells = []string{"bash", "zsh", "fish"}

func completionCommand() *cobra.Command {
	return &cobra.Command{
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
}

// completionStateDir returns the state directory during a completion, when options are not filled from the environment.
func completionStateDir(c *cobra.Command) (string, error) {
	err := config.Fill(c.Flags(), "", nil, os.LookupEnv)
	return stateDir(c), err
}

func completeContainers(c *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return containersLike(c, args, word, fullName)
}

func completeResizable(c *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return containersLike(c, args, word, func(c view.Container) string {
		if c.Pod == "" {
			return c.ContainerID
		}
		return c.Pod + ":" + c.Name
	})
}

func containersLike(c *cobra.Command, args []string, word string, name func(view.Container) string) ([]cobra.Completion, cobra.ShellCompDirective) {
	dir, err := completionStateDir(c)
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	n, err := view.Read(c.Context(), dir)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var found []cobra.Completion
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
	return found, cobra.ShellCompDirectiveNoFileComp
}

func completeGPUs(c *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	dir, err := completionStateDir(c)
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	f, err := node.Read(dir)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var found []cobra.Completion
	add := func(name, what string) {
		if strings.HasPrefix(name, word) {
			found = append(found, cobra.CompletionWithDesc(name, term.Clean(what)))
		}
	}
	for _, gpu := range f.Node.GPUs {
		add(fmt.Sprint(gpu.Index), gpu.Model)
		add(gpu.UUID, gpu.Model)
		for _, d := range gpu.MIG {
			add(d.UUID, gpu.Model+" MIG "+d.Profile)
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}
