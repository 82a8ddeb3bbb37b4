// Package cli has the commands of gpuslice, the program on a node, and of kubectl-gpuslice, the program for people. Files
// that need Linux and cgo have these build constraints: kubectl-gpuslice is built for other systems, and without cgo.
package cli

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
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/gpuslice/gpuslice/cmd/internal/config"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/monitor/view"
)

const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// notIgnored leaves out the signals that the caller ignores, as nohup does: a handler would replace that, also in programs that this
// one starts.
func notIgnored(signals ...os.Signal) []os.Signal { return slices.DeleteFunc(signals, signal.Ignored) }

// Main runs a program, and ends the process with its status.
func Main(c *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), notIgnored(os.Interrupt, syscall.SIGTERM)...)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if !signal.Ignored(syscall.SIGHUP) {
		// The end of a terminal can send several. The next ones do not end the process.
		ctx, _ = signal.NotifyContext(ctx, syscall.SIGHUP)
	}
	os.Exit(run(ctx, c, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, c *cobra.Command, args []string, stdout, stderr io.Writer) int {
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

// local is what only a program on a node can do. It is nil in kubectl-gpuslice, which knows the cluster only.
type local interface {
	// view reads the node's files.
	view(ctx context.Context, stateDir string) (view.Node, error)
	hardware(stateDir string) (gpusOf, error)
	// measure adds what the node's agent measures, if one runs.
	measure(ctx context.Context, n *view.Node, stateDir string)
	// unchecked describes what nothing checks while no agent runs; empty if one does.
	unchecked(stateDir string) (string, error)
	// describe adds what the container's files have.
	describe(d *containerDescribed, stateDir string) error
	// resize resizes a container of the node.
	resize(c *cobra.Command, target string, o resizeOptions) error
	// template returns a printer for -o go-template. text/template makes the linker keep every method, a third of the plugin.
	template(text string) (printers.ResourcePrinter, error)
	// cordon cordons a GPU on the node, or reverts that. It returns the number of containers that have a share of the GPU.
	cordon(c *cobra.Command, gpu string, on, dryRun bool) (held int, err error)
}

// root returns a program with the commands that both programs have, and more.
func root(c *cobra.Command, node local, more ...*cobra.Command) *cobra.Command {
	c.Version, c.SilenceUsage, c.SilenceErrors = version.String(), true, true
	c.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		return config.Fill(c.Flags(), "", variables, os.LookupEnv)
	}
	if node != nil {
		c.PersistentFlags().String("state-dir", "/run/gpuslice", "Read the agent's state from the directory `DIR`.")
	}
	choiceFlag(c, true, "color", "`WHEN` to print colors: WORDS; auto: on a terminal, without NO_COLOR.",
		string(term.Auto), string(term.Always), string(term.Never))
	c.AddCommand(
		statusCommand(node), topCommand(node), topologyCommand(node), describeCommand(node), completionCommand(node),
		resizeCommand(node), cordonCommand(node), uncordonCommand(node), drainCommand(node), explainCommand(node), defragCommand(node),
		migrateCommand(node),
		versionCommand(),
	)
	c.AddCommand(more...)
	c.SetFlagErrorFunc(config.Plain)
	config.NameUsage(c)
	config.Manual(c, variables)
	return c
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "gpuslice version %s\n", version.String())
			return work(err)
		},
	}
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

// runName is the command with exit statuses of its own.
const runName = "run"

// Exit statuses of "run", as of env, timeout and docker run.
const (
	exitRefused  = 125
	exitNotRun   = 126
	exitNotFound = 127
)

type exited struct {
	status int
	err    error
}

func (e exited) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

func (e exited) Unwrap() error { return e.err }
