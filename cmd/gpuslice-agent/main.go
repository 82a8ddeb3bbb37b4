// Command gpuslice-agent runs on each node: NRI plugin, inventory of GPUs, device plugin, audit and
// metrics.
package main

import (
	"cmp"
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

	"github.com/gpuslice/gpuslice/agent/discovery"
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/config"
	"github.com/gpuslice/gpuslice/cmd/internal/version"
)

const (
	exitStopped = 0
	exitFailed  = 1
	exitUsage   = 2
)

// runtimeConfigEnv names another file than api.RuntimeConfig, as for gpuslice-runtime.
const runtimeConfigEnv = "GPUSLICE_RUNTIME_CONFIG"

const stopWait = 8 * time.Second

const gcPercent = 400

const manual = `gpuslice-agent runs on every GPU node, as root. It connects to the container
runtime by NRI and handles every container before it is created: a container
with a grant in its pod's annotations gets its GPUs with limits, every other one
gets no GPU, except with --unscheduled-policy=share. With
--grant-public-key-file, grants must be signed. The ledger in --state-dir has
the granted shares; "gpuslice status" prints it.

The agent is also the kubelet's device plugin of --resource-name, so that pods
which request it are placed on the node. This grants nothing. Replicas of an
unhealthy GPU, and all replicas while the agent is not connected to the
container runtime, are reported as unhealthy.

Each option can be set on the command line, by an environment variable, or in
the YAML file of --config, in this order of priority. The agent does not start
with an invalid value.

--health-address serves /healthz (200 unless the agent hangs and a restart
helps) and /readyz (200 while the agent is connected and the GPUs are known).
A 503 has the reasons. --metrics-address serves the node's GPUs and containers
to Prometheus, as a web page and as JSON.

The agent stops at SIGTERM and SIGINT. Containers continue with their limits,
and the next start reads the ledger.

Exit status: 0 stopped by a signal; 1 failed; 2 invalid option.`

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
		// With a heap of few MiB, frequent collections delay containers. This halves the slowest
		// responses (BenchmarkCreateContainer's p99).
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr, run))
}

type starter func(ctx context.Context, o options, log *slog.Logger) error

func execute(ctx context.Context, args []string, stdout, stderr io.Writer, start starter) int {
	started := false
	c := command(stderr, func(ctx context.Context, o options, log *slog.Logger) error {
		started = true
		return start(ctx, o, log)
	}, func(ctx context.Context, c discovery.Config) error {
		started = true
		return discovery.Run(ctx, c)
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

func command(logs io.Writer, start starter, discover discoverer) *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:           "gpuslice-agent",
		Annotations:   map[string]string{config.Runs: ""},
		Short:         "Gives containers the GPUs of their grants, with limits, and no other GPU access",
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
			if err := config.Fill(c.Flags(), o.ConfigFile, variables, os.LookupEnv); err != nil {
				return err
			}
			if !o.withNRI() {
				if err := o.ofEngines(c.Flags(), cmp.Or(os.Getenv(runtimeConfigEnv), api.RuntimeConfig)); err != nil {
					return err
				}
			}
			if err := o.validate(); err != nil {
				return err
			}
			return start(c.Context(), o, o.logger(logs))
		},
	}
	o.bind(c.Flags())
	c.SetFlagErrorFunc(config.Plain)
	config.Manual(c, variables)
	c.AddCommand(discoverCommand(logs, discover))
	c.CompletionOptions.DisableDefaultCmd = true
	c.SetHelpCommand(&cobra.Command{Hidden: true})
	return c
}
