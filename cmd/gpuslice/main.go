// Command gpuslice shows the GPUs of a node or a cluster and their use, checks and installs a node, and resizes,
// cordons and drains. It is also the kubectl plugin kubectl-gpuslice.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/config"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/monitor/nodeview"
	"github.com/gpuslice/gpuslice/monitor/view"
)

const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

const manual = `gpuslice shows the GPUs of a node or of a cluster, what is granted and what is
in use. It checks what a node needs, and installs gpuslice into container
engines. On a node, run it as root.

Exit status: 0 success (what could not be read is printed as problems); 1
failure; 2 invalid usage.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), notIgnored(os.Interrupt, syscall.SIGTERM)...)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// notIgnored leaves out the signals that the caller ignores, as nohup does: a handler would replace that, also in programs that this
// one starts.
func notIgnored(signals ...os.Signal) []os.Signal { return slices.DeleteFunc(signals, signal.Ignored) }

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c := command()
	c.SetArgs(args)
	c.SetOut(stdout)
	c.SetErr(stderr)
	called, err := c.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	var of exited
	if errors.As(err, &of) && of.err == nil {
		return of.status
	}
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 && !strings.Contains(err.Error(), asRoot) {
		err = fmt.Errorf("%w: %s", err, asRoot)
	}
	fmt.Fprintf(stderr, "gpuslice: %s\n", term.CleanLines(err.Error()))
	switch {
	case of.status != 0:
		return of.status
	case called.Name() == runName: // another status could be the command's
		return exitRefused
	case errors.As(err, new(failure)):
		return exitFailed
	}
	return exitUsage
}

// asRoot is the remedy for files that only root can read.
const asRoot = "run it as root"

// failure marks an error of the work, not of the call.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// work marks an error as one of the work; nil stays nil.
func work(err error) error {
	if err == nil {
		return nil
	}
	return failure{err}
}

// variables set options that are the same in every call of a person.
var variables = config.OfCommand("state-dir", "system-namespace", "output", "color")

func command() *cobra.Command {
	c := &cobra.Command{
		Use:           "gpuslice",
		Short:         "Show and manage the GPUs of a node or a cluster",
		Long:          manual,
		Version:       version.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			return config.Fill(c.Flags(), "", variables, os.LookupEnv)
		},
	}
	if isPlugin() {
		c.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl gpuslice"}
	}
	c.PersistentFlags().String("state-dir", "/run/gpuslice", "Read the agent's state from the directory `DIR`.")
	choiceFlag(c, true, "color", "`WHEN` to print colors: WORDS; auto: on a terminal, without NO_COLOR.",
		string(term.Auto), string(term.Always), string(term.Never))
	c.AddCommand(
		statusCommand(), topCommand(), topologyCommand(), describeCommand(), completionCommand(),
		doctorCommand(), gpusCommand(), cdiCommand(), installCommand(), uninstallCommand(),
		runCommand(), resizeCommand(), cordonCommand(), uncordonCommand(), drainCommand(), explainCommand(), defragCommand(),
		&cobra.Command{
			Use: "version", Short: "Print the version", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				_, err := fmt.Fprintf(c.OutOrStdout(), "gpuslice version %s\n", version.String())
				return work(err)
			},
		},
	)
	c.SetFlagErrorFunc(config.Plain)
	config.NameUsage(c)
	config.Manual(c, variables)
	return c
}

// parent makes a command that only has subcommands reject other arguments; cobra would print the help.
func parent(c *cobra.Command) *cobra.Command {
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		var names []string
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				names = append(names, sub.Name())
			}
		}
		return fmt.Errorf("%s: unknown command %q: use %s", c.CommandPath(), args[0], oneOf(names))
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return c
}

// absolute rejects flags with relative paths. A path may be empty if optional names its flag.
func absolute(c *cobra.Command, optional []string, names ...string) error {
	var errs []error
	for _, name := range append(names, optional...) {
		f := c.Flags().Lookup(name)
		if f == nil {
			continue
		}
		paths := []string{f.Value.String()}
		if f.Value.Type() == "stringSlice" {
			paths, _ = c.Flags().GetStringSlice(name)
		}
		for _, path := range paths {
			if !filepath.IsAbs(path) && (path != "" || !slices.Contains(optional, name)) {
				errs = append(errs, fmt.Errorf("--%s: %q is not an absolute path: start it with /", name, path))
			}
		}
	}
	return errors.Join(errs...)
}

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
	err := config.Fill(c.Flags(), "", variables, os.LookupEnv)
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
	n, err := nodeview.Read(c.Context(), dir)
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
