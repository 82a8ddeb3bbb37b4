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

const resizeManual = `Changes the share of a running container. Its processes follow with their next
call: an allocation that failed can succeed then.

If a container uses more than its new limit, nothing is freed or killed; it gets
no more memory until it is below. A request for more than a GPU has free is
refused, and changes nothing.

Name a container without Kubernetes (docker, podman, containerd) by its ID or a
prefix of it, on its node, as root. The change lasts until the container ends:
"docker restart" starts it with its first share.

Name a pod's container NAMESPACE/POD, and NAMESPACE/POD:CONTAINER if the pod has
several with GPUs, from any machine. The scheduler checks and reserves the
share, the node's agent applies it, and the command waits for both. The change
lasts as long as the pod, also if its containers restart. See docs/RESIZE.md.

Exit status: 0 the change is applied; 1 it was refused or failed, and nothing has
changed unless the message reports it; 2 invalid usage.`

type resizeOptions struct {
	memory              string
	size                request.Size // of memory
	cores               int
	gpu                 string
	timeout             time.Duration
	setMemory, setCores bool
}

func resizeCommand() *cobra.Command {
	var (
		o      resizeOptions
		called call
	)
	c := &cobra.Command{
		Use:   "resize CONTAINER | NAMESPACE/POD[:CONTAINER]",
		Short: "Change the share of a running container",
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
				return called.resizePod(args[0], o)
			}
			return work(resizeOnNode(c, args[0], o))
		},
	}
	c.Flags().StringVar(&o.memory, "memory", "", "Device memory of each of its GPUs, a `SIZE` such as 8GiB, 8000MiB or 25%.")
	c.Flags().IntVar(&o.cores, "cores", 0, "Compute time of each of its GPUs in `PERCENT`; 0: not limited.")
	c.Flags().DurationVar(&o.timeout, "timeout", requestTimeout, "For a pod, wait `TIME` for the scheduler and the node.")
	called = componentFlags(c)
	c.Flags().StringVar(&o.gpu, "gpu", "", "Change only its share of this `GPU`, an index or a UUID; for a pod a UUID.")
	return c
}

func (o *resizeOptions) check() error {
	if !o.setMemory && !o.setCores {
		return errors.New("nothing to change: set --memory, --cores or both")
	}
	if o.setCores && (o.cores < 0 || o.cores > grant.MaxCorePercent) {
		return fmt.Errorf("--cores: %d is out of range: use 0 to %d percent of a GPU", o.cores, grant.MaxCorePercent)
	}
	if !o.setMemory {
		return nil
	}
	var err error
	if o.size, err = request.ParseSize(o.memory); err != nil {
		return fmt.Errorf("--memory: %w: use a size such as 8GiB, 8000MiB or 25%%", err)
	}
	return nil
}

func (o *resizeOptions) of(old []grant.Share, gpus map[string]grant.GPU, uuid string) ([]grant.Share, error) {
	shares, found, uuids := make([]grant.Share, len(old)), false, make([]string, len(old))
	for i, s := range old {
		shares[i], uuids[i] = s, s.UUID
		if uuid != "" && s.UUID != uuid {
			continue
		}
		found = true
		if o.setMemory {
			gpu, known := gpus[s.UUID]
			if o.size.Percent != 0 && !known {
				return nil, fmt.Errorf("--memory %s: the size of GPU %s is not known: use MiB or GiB", o.memory, s.UUID)
			}
			shares[i].MemoryMiB = o.size.Of(gpu)
		}
		if o.setCores {
			shares[i].CorePercent = o.cores
		}
	}
	if !found {
		return nil, fmt.Errorf("--gpu %s: the container has no share of it: use %s", o.gpu, strings.Join(uuids, ", "))
	}
	return shares, nil
}

func change(before, now grant.Share) string {
	var parts []string
	if before.MemoryMiB != now.MemoryMiB {
		parts = append(parts, fmt.Sprintf("memory %d -> %d MiB", before.MemoryMiB, now.MemoryMiB))
	}
	if before.CorePercent != now.CorePercent {
		parts = append(parts, fmt.Sprintf("cores %s -> %s", limitOf(before.CorePercent), limitOf(now.CorePercent)))
	}
	if len(parts) == 0 {
		return fmt.Sprintf("unchanged, %d MiB, cores %s", now.MemoryMiB, limitOf(now.CorePercent))
	}
	return strings.Join(parts, ", ")
}

func limitOf(cores int) string {
	if cores == 0 {
		return "not limited"
	}
	return fmt.Sprintf("%d %%", cores)
}
