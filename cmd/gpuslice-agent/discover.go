package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/agent/discovery"
	"github.com/gpuslice/gpuslice/agent/noderegister"
	"github.com/gpuslice/gpuslice/cmd/internal/config"
	"github.com/gpuslice/gpuslice/cmd/internal/version"
)

// discoveryInterval is how long a change of the machine's devices may take to be noticed.
const discoveryInterval = time.Minute

// discoverer is discovery.Run, or a test's.
type discoverer func(context.Context, discovery.Config) error

func discoverCommand(logs io.Writer, run discoverer) *cobra.Command {
	var node, kubeconfig string
	c := &cobra.Command{
		Use:   "discover",
		Short: "Label the node as one with a GPU, for the chart's placement",
		Long: `discover sets the label gpuslice.io/has-gpu=true on its node if the machine has a
GPU of NVIDIA, and removes it when there has been none for five minutes. Another
value of the label stays: gpuslice.io/has-gpu=false. It needs no driver and no
rights on the machine. The chart runs it on all nodes with discovery.enabled.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := config.Fill(c.Flags(), "", variables, os.LookupEnv); err != nil {
				return err
			}
			if node == "" {
				return errors.New("--node-name is required: the node's name in Kubernetes")
			}
			api, err := noderegister.LoadConfig(kubeconfig)
			if err != nil {
				return err
			}
			api.UserAgent = "gpuslice-discovery/" + version.String()
			client, err := noderegister.NewClient(api, discovery.FieldManager)
			if err != nil {
				return fmt.Errorf("discover: %w", err)
			}
			return run(c.Context(), discovery.Config{
				Client: client, Node: node, Root: os.DirFS("/"), Interval: discoveryInterval,
				Log: slog.New(slog.NewJSONHandler(logs, nil)),
			})
		},
	}
	c.Flags().StringVar(&node, "node-name", "", "`NAME` of this node in Kubernetes")
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "`FILE` for the API server; empty: use the pod's service account")
	return c
}
