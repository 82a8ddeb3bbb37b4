package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/grant/size"
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
	size                size.Size // of memory
	cores               int
	gpu                 string
	timeout             time.Duration
	setMemory, setCores bool
}

func resizeCommand(node local) *cobra.Command {
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
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			o.setMemory, o.setCores = c.Flags().Changed("memory"), c.Flags().Changed("cores")
			if err := o.check(); err != nil {
				return err
			}
			if strings.Contains(args[0], "/") || node == nil {
				return called.resizePod(args[0], o)
			}
			return work(node.resize(c, args[0], o))
		},
	}
	ofCluster(c, node, "resize [NAMESPACE/]POD[:CONTAINER]", c.Short, resizeOfCluster, "  kubectl gpuslice resize train --memory 12GiB -n team-a\n  kubectl gpuslice resize team-a/train:main --memory 12GiB --cores 50")
	c.Flags().StringVar(&o.memory, "memory", "", "Device memory of each of its GPUs, a `SIZE` such as 8GiB, 8000MiB or 25%.")
	c.Flags().IntVar(&o.cores, "cores", 0, "Compute time of each of its GPUs in `PERCENT`; 0: not limited.")
	c.Flags().DurationVar(&o.timeout, "timeout", requestTimeout, "For a pod, wait `TIME` for the scheduler and the node.")
	called = componentFlags(c, node)
	c.ValidArgsFunction = called.completeResizable
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
	if o.size, err = size.Parse(o.memory); err != nil {
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

func (c call) resizePod(target string, o resizeOptions) error {
	if o.size.Percent != 0 {
		return fmt.Errorf("--memory %s: the size of a pod's GPU is not known: use MiB or GiB", o.memory)
	}
	if o.gpu != "" {
		if err := grant.ValidateUUID(o.gpu); err != nil {
			return fmt.Errorf("--gpu %s: %w: see gpuslice describe container", o.gpu, err)
		}
	}
	namespace, name, container, err := podName(target)
	if err != nil {
		return err
	}
	return c.withCluster(o.timeout, func(ctx context.Context, connection *cluster.Cluster) error {
		pod, err := connection.Pod(ctx, cmp.Or(namespace, connection.Namespace), name)
		if err != nil {
			return err
		}
		return o.ofPod(ctx, c.Command, connection, pod, container)
	})
}

func (o *resizeOptions) ofPod(ctx context.Context, c *cobra.Command, connection *cluster.Cluster, pod *v1.Pod, container string) error {
	container, before, err := cluster.OneContainer(pod, container)
	if err != nil {
		return err
	}
	wanted := grant.Wanted{GPU: o.gpu}
	if o.setMemory {
		wanted.MemoryMiB = &o.size.MiB
	}
	if o.setCores {
		wanted.Cores = &o.cores
	}
	if _, err := wanted.Of(before); err != nil {
		return fmt.Errorf("container %q of pod %s/%s: %w", container, pod.Namespace, pod.Name, err)
	}
	resized, err := connection.Resize(ctx, pod, map[string]grant.Wanted{container: wanted})
	if err != nil {
		return err
	}
	_, now, err := cluster.OneContainer(resized, container)
	if err != nil {
		return err
	}
	for i, s := range now {
		fmt.Fprintf(c.OutOrStdout(), "pod %s/%s, container %s, GPU %s: %s\n", pod.Namespace, pod.Name, container, s.UUID, change(before[i], s))
	}
	switch err := connection.Applied(ctx, resized, container, now); {
	case errors.Is(err, cluster.ErrNotApplied):
		return fmt.Errorf("reserved but not applied: %w", err)
	case err != nil:
		fmt.Fprintf(c.ErrOrStderr(), "gpuslice: reserved, not known whether it is applied: %s\n", term.Clean(err.Error()))
	default:
		fmt.Fprintf(c.OutOrStdout(), "applied on node %s\n", resized.Spec.NodeName)
	}
	return nil
}

// findGPU finds the UUID of a GPU by an index, a UUID or a prefix of it.
func findGPU(f gpusOf, name string) (string, error) {
	var all []cluster.GPU
	for _, gpu := range f.Node.GPUs {
		all = append(all, cluster.GPU{UUID: gpu.UUID, Index: gpu.Index})
		for _, d := range gpu.MIG {
			all = append(all, cluster.GPU{UUID: d.UUID, Index: -1})
		}
	}
	return cluster.OneGPU(name, all, "gpuslice status")
}
