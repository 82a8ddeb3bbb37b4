package main

import (
	"fmt"
	"io"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/nvidia"
)

const gpusManual = `GPUs asks the driver, by NVML, which GPUs and MIG devices this machine has, and
prints them as JSON: what gpuslice-agent writes to node.json in its state directory.
gpuslice-runtime calls it once a boot where no agent runs.`

// gpusOptions are how the GPUs would be shared.
type gpusOptions struct {
	library string
	sharing node.Sharing
}

func gpusCommand() *cobra.Command {
	o := gpusOptions{sharing: node.Sharing{Cores: 1, MIG: nvidia.MIGMixed}}
	c := &cobra.Command{
		Use:   "gpus",
		Short: "Asks the driver which GPUs this machine has",
		Long:  gpusManual,
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return work(printGPUs(c.OutOrStdout(), o))
		},
	}
	c.Flags().StringVar(&o.library, "nvml-library", "libnvidia-ml.so.1", "the driver's management library, a `name` or a path")
	c.Flags().IntVar(&o.sharing.Slots, "device-split-count", 10, "`number` of containers that may share a GPU")
	c.Flags().Float64Var(&o.sharing.Memory, "memory-scaling", 1, "what may be granted, as a `multiple` of a GPU's memory")
	return c
}

// printGPUs prints what node.json would hold.
func printGPUs(w io.Writer, o gpusOptions) error {
	library := nvml.New(nvml.WithLibraryPath(o.library))
	found, err := nvidia.Discover(library)
	if err != nil {
		return err
	}
	var topology nvidia.Topology
	if len(found.GPUs) > 1 {
		topology, _ = nvidia.DiscoverTopology(library) // for people alone: a driver need not say
	}
	devices, err := o.sharing.Devices(found)
	if err != nil {
		return fmt.Errorf("what of the GPUs can be shared: %w", err)
	}
	data, err := node.File{AgentVersion: version.String(), WrittenAt: time.Now().UTC(), Devices: devices, Node: found, Topology: topology}.Encode()
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}
