// Command gpuslice shows people what a node's GPUs are granted and used for, and
// what a node lacks, and installs gpuslice into container engines.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/config"
	"github.com/gpuslice/gpuslice/cmd/internal/version"
)

// The exit statuses, as the manual has them.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

const manual = `gpuslice shows what a node's GPUs are granted and used for, and whether the node
has what it needs for that, and puts gpuslice into its container engines. It
runs on the node, as root.

Exit status: 0 it is done (what of it could not be read is printed as problems);
1 it failed; 2 the call is wrong.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// execute is the program: it returns its exit status.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c := command()
	c.SetArgs(args)
	c.SetOut(stdout)
	c.SetErr(stderr)
	err := c.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	fmt.Fprintf(stderr, "gpuslice: %v\n", err)
	if errors.As(err, new(failure)) {
		return exitFailed
	}
	return exitUsage
}

// failure is an error of the work itself. All others are of the call.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// work marks an error, which may be nil, as one of the work.
func work(err error) error {
	if err == nil {
		return nil
	}
	return failure{err}
}

func command() *cobra.Command {
	c := &cobra.Command{
		Use:           "gpuslice",
		Short:         "Shows what a node's GPUs are granted and used for",
		Long:          manual,
		Version:       version.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			return config.Fill(c.Flags(), "", nil, os.LookupEnv)
		},
	}
	c.PersistentFlags().String("state-dir", "/run/gpuslice", "the agent's state `directory`")
	colorFlag(c)
	c.AddCommand(
		statusCommand(), topCommand(), topologyCommand(), describeCommand(), completionCommand(),
		doctorCommand(), gpusCommand(), cdiCommand(), installCommand(), uninstallCommand(),
	)
	addClusterCommands(c)
	config.Manual(c, nil)
	return c
}

// parent makes a command that has others below it, and does nothing itself, refuses to be
// called with what isn't one of them: cobra would print the manual, and that is all.
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
		return fmt.Errorf("%s: unknown command %q: want %s", c.CommandPath(), args[0], oneOf(names))
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return c
}
