// Command gpuslice-agent is the one daemon of a node: it guards every container's
// way to the node's GPUs as an NRI plugin, keeps their inventory, and offers shares of
// them to the kubelet.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/config"
	"github.com/gpuslice/gpuslice/cmd/internal/version"
)

// The exit statuses, as the manual has them.
const (
	exitStopped = 0
	exitFailed  = 1
	exitUsage   = 2
)

// stopWait is the longest time for a stop. The agent notifies schedulers first, and serves
// the kubelet a moment longer.
const stopWait = 8 * time.Second

// gcPercent is the agent's GOGC, where its environment sets none.
const gcPercent = 400

const manual = `gpuslice-agent runs on every GPU node, as root. It connects to the container
runtime by NRI and answers for every container before it is created: one that
its pod's annotations grant a share gets the GPU with its limits, every other
one gets no GPU at all, unless --unscheduled-policy says otherwise. With
--grant-public-key-file a grant must be signed. What it reserved is in
--state-dir, readable with ls; "gpuslice status" prints it.

It is also the kubelet's device plugin of --resource-name, so that pods that ask
for it are sent here. That grants nothing. Replicas of a GPU that is ill, and
all of them while the node is not guarded, are reported as unhealthy.

Every option can be given on the command line, as a variable, or by its name in
the YAML file that --config names. The first of these that has it wins. A bad
value anywhere stops the agent at its start.

The agent answers on --health-address: /healthz is 200 unless it hangs and a
restart would help, /readyz is 200 while the node is guarded and its GPUs are
known. Both say why when they are 503. On --metrics-address it shows the node's
GPUs and containers: to Prometheus, to people, and as JSON.

It ends at SIGTERM and SIGINT; containers go on, each with its limits. At its
next start it takes its books up again.

Exit status: 0 it was told to end; 1 it failed; 2 an option is wrong.`

const examples = `  gpuslice-agent
  gpuslice-agent --config /etc/gpuslice/agent.yaml --log-level debug
  GPUSLICE_EXEMPT_NAMESPACES=kube-system,monitoring gpuslice-agent

  # agent.yaml
  device-split-count: 4
  exempt-namespaces: [kube-system, monitoring]`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		stop() // a second signal ends the process at once
		time.AfterFunc(stopWait, func() {
			fmt.Fprintf(os.Stderr, "gpuslice-agent: not stopped within %s of the signal: exiting\n", stopWait)
			os.Exit(exitFailed)
		})
	})
	if os.Getenv("GOGC") == "" {
		// The heap is a few MiB, which Go would collect often, and containers wait. Some
		// MiB more halve the time of the slowest answers (BenchmarkCreateContainer's p99).
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr, run))
}

// starter is run, or what a test has in its place.
type starter func(ctx context.Context, o options, log *slog.Logger) error

// execute is the program: it returns its exit status.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer, start starter) int {
	started := false
	c := command(stderr, func(ctx context.Context, o options, log *slog.Logger) error {
		started = true
		return start(ctx, o, log)
	})
	c.SetArgs(args)
	c.SetOut(stdout)
	c.SetErr(stderr)
	err := c.ExecuteContext(ctx)
	if err == nil {
		return exitStopped
	}
	fmt.Fprintf(stderr, "gpuslice-agent: %v\n", err)
	if !started {
		return exitUsage
	}
	return exitFailed
}

func command(logs io.Writer, start starter) *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:           "gpuslice-agent",
		Short:         "Guards the node's GPUs: turns grants into limited access, and everything else into none",
		Long:          manual,
		Example:       examples,
		Version:       version.String(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("config") {
				o.ConfigFile = os.Getenv(config.EnvName("config"))
			}
			if err := config.Fill(c.Flags(), o.ConfigFile, aliases, os.LookupEnv); err != nil {
				return err
			}
			if err := o.validate(); err != nil {
				return err
			}
			return start(c.Context(), o, o.logger(logs))
		},
	}
	o.bind(c.Flags())
	config.Manual(c, aliases)
	return c
}
