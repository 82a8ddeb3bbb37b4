// Command gpuslice shows people what a node's GPUs are granted and used for.
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
		fmt.Fprintf(os.Stderr, "gpuslice: %v\n", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	c := &cobra.Command{
		Use:           "gpuslice",
		Short:         "Shows what a node's GPUs are granted and used for",
		Version:       version.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			return config.Fill(c.Flags(), "", nil, os.LookupEnv)
		},
	}
	c.PersistentFlags().String("state-dir", "/run/gpuslice", "the agent's state folder")
	c.AddCommand(statusCommand())
	return c
}
