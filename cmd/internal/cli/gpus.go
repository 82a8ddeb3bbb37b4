//go:build linux && cgo

package cli

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

const gpusManual = `Prints the GPUs and MIG devices of this machine by NVML, as JSON: the content of
node.json, which gpuslice-agent writes to its state directory. Without an agent,
gpuslice-runtime runs this command once after boot.`

type gpusOptions struct {
	library string
	sharing node.Sharing
}

func gpusCommand() *cobra.Command {
	o := gpusOptions{sharing: node.Sharing{Cores: 1, MIG: nvidia.MIGMixed}}
	c := &cobra.Command{
		Use:   "gpus",
		Short: "Print the GPUs of this machine, as JSON",
		Long:  gpusManual,
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return work(printGPUs(c.OutOrStdout(), o))
		},
	}
	c.Flags().StringVar(&o.library, "nvml-library", "libnvidia-ml.so.1", "`NAME` or path of the driver's management library.")
	c.Flags().IntVar(&o.sharing.Replicas, "device-split-count", 10, "`NUMBER` of containers that may share a GPU.")
	c.Flags().Float64Var(&o.sharing.Memory, "memory-scaling", 1, "Grant at most this `FACTOR` of a GPU's memory.")
	return c
}

func printGPUs(w io.Writer, o gpusOptions) error {
	library := nvml.New(nvml.WithLibraryPath(o.library))
	found, err := nvidia.Discover(library)
	if err != nil {
		return err
	}
	var topology nvidia.Topology
	if len(found.GPUs) > 1 {
		topology, _ = nvidia.DiscoverTopology(library) // optional
	}
	devices, err := o.sharing.Devices(found)
	if err != nil {
		return fmt.Errorf("compute what the GPUs offer: %w: check --device-split-count and --memory-scaling", err)
	}
	data, err := node.File{AgentVersion: version.String(), WrittenAt: time.Now().UTC(), Devices: devices, Node: found, Topology: topology}.Encode()
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}
