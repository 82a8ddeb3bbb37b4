//go:build linux && cgo

package cli

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/oci/native"
)

// limitMemoryCommand is for gpuslice-runtime, which can't load NVML.
func limitMemoryCommand() *cobra.Command {
	var library string
	var probe bool
	c := &cobra.Command{
		Use:    native.Command,
		Short:  "Set the driver's memory limits of a control group, as standard input requests",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error {
			inventory := nvidia.NewCache(nvml.New(nvml.WithLibraryPath(library)), nvidia.CacheOptions{Log: slog.New(slog.DiscardHandler)})
			if err := inventory.Refresh(c.Context()); err != nil {
				return work(err)
			}
			defer inventory.Close()
			if probe {
				return work(probeMemory(c.Context(), inventory))
			}
			return work(json.NewEncoder(c.OutOrStdout()).Encode(native.Answer(c.Context(), inventory, c.InOrStdin())))
		},
	}
	c.Flags().StringVar(&library, "nvml-library", "libnvidia-ml.so.1", "`NAME` or path of the driver's management library.")
	c.Flags().BoolVar(&probe, "probe", false, "Only check that the driver has such limits, on a control group of its own.")
	return c
}

func probeMemory(ctx context.Context, inventory *nvidia.Cache) error {
	root, err := native.Root()
	if err != nil {
		return err
	}
	return native.Probe(ctx, inventory, root, inventory.Node().WithoutMIG())
}
