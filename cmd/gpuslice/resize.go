package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/oci/request"
)

const resizeManual = `Changes how much a running container may have of the GPUs that it has. Its
processes follow with their next call: what failed for want of memory succeeds.

With less than it uses nothing is freed and nothing is killed: it is given no
more until it is below. More than a GPU has free is refused, and nothing is
changed then.

A container without Kubernetes (docker, podman, containerd) is named by its id,
or the beginning of it, on its node, as root. The change lasts until the
container ends: "docker restart" makes it again with what it was created with.

A pod's is named NAMESPACE/POD, and NAMESPACE/POD:CONTAINER where it has several
with GPUs, from anywhere: the scheduler checks and books it, the node's agent
applies it, and the command waits for both. It lasts as long as the pod, also over
restarts of its containers. See docs/RESIZE.md.

Exit status: 0 it is done; 1 it was refused or failed, and nothing is changed
unless it says so; 2 the call is wrong.`

// resizeOptions are what a container is to have.
type resizeOptions struct {
	memory  string
	cores   int
	gpu     string
	timeout time.Duration
	// set says which were given.
	setMemory, setCores bool
	size                request.Size
}

func resizeCommand() *cobra.Command {
	var o resizeOptions
	c := &cobra.Command{
		Use:   "resize CONTAINER | NAMESPACE/POD[:CONTAINER]",
		Short: "Change how much a running container may have",
		Long:  resizeManual,
		Example: `  gpuslice resize 3f2a9c --memory 12GiB
  gpuslice resize team-a/train:main --memory 12GiB --cores 50
  kubectl gpuslice resize train --memory 12GiB -n team-a`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeResizable,
		RunE: func(c *cobra.Command, args []string) error {
			o.setMemory, o.setCores = c.Flags().Changed("memory"), c.Flags().Changed("cores")
			if err := o.check(); err != nil {
				return err
			}
			if strings.Contains(args[0], "/") || isPlugin() {
				return resizePod(c, args[0], o)
			}
			return resizeOnNode(c, args[0], o)
		},
	}
	c.Flags().StringVar(&o.memory, "memory", "", "device memory of each of its GPUs, a `size` such as 8GiB, 8000MiB or 25%")
	c.Flags().IntVar(&o.cores, "cores", 0, "compute time of each of its GPUs, in `percent`; 0: not limited")
	c.Flags().DurationVar(&o.timeout, "timeout", answerPatience, "`time` to wait for the scheduler and the node, of a pod")
	askFlags(c)
	c.Flags().StringVar(&o.gpu, "gpu", "", "change its share of this `gpu` alone, an index or a UUID")
	return c
}

// check says what of the call is wrong.
func (o *resizeOptions) check() error {
	if !o.setMemory && !o.setCores {
		return errors.New("what it is to have is not said: name --memory, --cores or both")
	}
	if o.setCores && (o.cores < 0 || o.cores > grant.MaxCorePercent) {
		return fmt.Errorf("--cores: %d: want 0 to %d percent of a GPU", o.cores, grant.MaxCorePercent)
	}
	if !o.setMemory {
		return nil
	}
	var err error
	if o.size, err = request.ParseSize(o.memory); err != nil {
		return fmt.Errorf("--memory: %w", err)
	}
	return nil
}

// of is what the shares become.
func (o *resizeOptions) of(old []grant.Share, gpus map[string]grant.GPU, uuid string) ([]grant.Share, error) {
	shares, found := make([]grant.Share, len(old)), false
	for i, s := range old {
		shares[i] = s
		if uuid != "" && s.UUID != uuid {
			continue
		}
		found = true
		if o.setMemory {
			gpu, known := gpus[s.UUID]
			if o.size.Percent != 0 && !known {
				return nil, fmt.Errorf("--memory %s: the size of GPU %s is not known here: name MiB or GiB", o.memory, s.UUID)
			}
			shares[i].MemoryMiB = o.size.Of(gpu)
		}
		if o.setCores {
			shares[i].CorePercent = o.cores
		}
	}
	if !found {
		return nil, fmt.Errorf("--gpu %s: the container has no share of it; it has %s", o.gpu, strings.Join(uuids(old), ", "))
	}
	return shares, nil
}

func uuids(shares []grant.Share) (list []string) {
	for _, s := range shares {
		list = append(list, s.UUID)
	}
	return list
}

// change is what has become of a share, for people.
func change(before, now grant.Share) string {
	var parts []string
	if before.MemoryMiB != now.MemoryMiB {
		parts = append(parts, fmt.Sprintf("memory %d -> %d MiB", before.MemoryMiB, now.MemoryMiB))
	}
	if before.CorePercent != now.CorePercent {
		parts = append(parts, fmt.Sprintf("cores %s -> %s", limitOf(before.CorePercent), limitOf(now.CorePercent)))
	}
	if len(parts) == 0 {
		return fmt.Sprintf("as before, %d MiB, cores %s", now.MemoryMiB, limitOf(now.CorePercent))
	}
	return strings.Join(parts, ", ")
}

func limitOf(cores int) string {
	if cores == 0 {
		return "not limited"
	}
	return fmt.Sprintf("%d %%", cores)
}
