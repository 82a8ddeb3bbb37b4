// Command gpuslice shows the GPUs of a node or a cluster and their use, checks and installs a node, and resizes,
// cordons and drains. It is also the kubectl plugin kubectl-gpuslice.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/config"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/cmd/internal/version"
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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c := command()
	c.SetArgs(args)
	c.SetOut(stdout)
	c.SetErr(stderr)
	err := c.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	fmt.Fprintf(stderr, "gpuslice: %s\n", term.CleanLines(err.Error()))
	if errors.As(err, new(failure)) {
		return exitFailed
	}
	return exitUsage
}

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

func command() *cobra.Command {
	c := &cobra.Command{
		Use:           "gpuslice",
		Short:         "Show and manage the GPUs of a node or a cluster",
		Long:          manual,
		Version:       version.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			return config.Fill(c.Flags(), "", nil, os.LookupEnv)
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
		resizeCommand(), cordonCommand(), uncordonCommand(), drainCommand(), explainCommand(),
	)
	config.Manual(c, nil)
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
