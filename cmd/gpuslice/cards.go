package main

import (
	"fmt"
	"io"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/gpu"
	"github.com/gpuslice/gpuslice/monitor/node"
)

const cardsManual = `cards asks the driver, by NVML, which cards and MIG devices this machine has, and
prints them as JSON: what gpuslice-agent writes to node.json in its state folder.
gpuslice-runtime calls it once a boot where no agent runs.`

// cardsOptions are how the cards would be shared.
type cardsOptions struct {
	library string
	sharing node.Sharing
}

func cardsCommand() *cobra.Command {
	o := cardsOptions{sharing: node.Sharing{Cores: 1, MIG: gpu.MIGMixed}}
	c := &cobra.Command{
		Use:   "cards",
		Short: "Asks the driver which cards this machine has",
		Long:  cardsManual,
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return work(printCards(c.OutOrStdout(), o))
		},
	}
	c.Flags().StringVar(&o.library, "nvml-library", "libnvidia-ml.so.1", "the driver's management library, a `name` or a path")
	c.Flags().IntVar(&o.sharing.Slots, "device-split-count", 10, "`number` of containers that may share a card")
	c.Flags().Float64Var(&o.sharing.Memory, "memory-scaling", 1, "what may be granted, as a `multiple` of a card's memory")
	return c
}

// printCards prints what node.json would hold.
func printCards(w io.Writer, o cardsOptions) error {
	library := nvml.New(nvml.WithLibraryPath(o.library))
	found, err := gpu.Discover(library)
	if err != nil {
		return err
	}
	var topology gpu.Topology
	if len(found.Cards) > 1 {
		topology, _ = gpu.DiscoverTopology(library) // for people alone: a driver need not say
	}
	devices, err := o.sharing.Devices(found)
	if err != nil {
		return fmt.Errorf("what of the cards can be shared: %w", err)
	}
	data, err := node.File{AgentVersion: version.String(), WrittenAt: time.Now().UTC(), Devices: devices, Node: found, Topology: topology}.Encode()
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}
