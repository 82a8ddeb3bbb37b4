// Command gpuslice-agent is the one daemon of a node: it guards every container's
// way to the node's cards as an NRI plugin, and keeps their inventory.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/config"
	"github.com/gpuslice/gpuslice/cmd/internal/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "gpuslice-agent: %v\n", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "gpuslice-agent",
		Short: "Guards the node's GPUs: turns grants into limited access, and everything else into none",
		Long: `gpuslice-agent runs on every GPU node. It connects to the container runtime by NRI
and answers for every container before it is created: one that its pod's
annotations grant a share gets the card with its limits, every other one gets no
card at all. What it booked is in --state-dir, readable with ls.

Every option can be given on the command line, as a variable (--nri-socket is
` + config.EnvName("nri-socket") + `), or in the file that --config names; the first of
these that has it wins. A bad value anywhere stops the agent at its start.`,
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
			log, err := o.logger(os.Stderr)
			if err != nil {
				return err
			}
			return run(c.Context(), o, log)
		},
	}
	o.bind(c.Flags())
	return c
}
