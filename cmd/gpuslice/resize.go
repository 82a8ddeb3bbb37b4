package main

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
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/oci"
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

func resizeOnNode(c *cobra.Command, target string, o resizeOptions) error {
	ledger, file, err := openNode(c)
	if err != nil {
		return err
	}
	defer ledger.Close()
	gpus := node.Capacities(file.Devices)
	uuid := ""
	if o.gpu != "" {
		if uuid, err = findGPU(file, o.gpu); err != nil {
			return err
		}
	}
	snapshot, err := ledger.Snapshot(c.Context())
	if err != nil {
		return err
	}
	claim, err := findClaim(snapshot.Claims(), target)
	if err == nil {
		err = checkResizable(ledger, claim)
	}
	if err != nil {
		return err
	}
	shares, err := o.of(claim.Shares, gpus, uuid)
	if err != nil {
		return err
	}
	before, err := reserve(c.Context(), ledger, claim.ContainerID, shares, gpus)
	if err != nil {
		return err
	}
	for i, s := range shares {
		fmt.Fprintf(c.OutOrStdout(), "container %s, GPU %s: %s\n", claim.ContainerID, s.UUID, change(before[i], s))
	}
	return nil
}

// openNode opens the ledger in the state directory, and reads the node's GPUs.
func openNode(c *cobra.Command) (*ledger.Ledger, node.File, error) {
	file, err := node.Read(stateDir(c)) // first: OpenLedger creates the directory
	if err != nil {
		return nil, file, err
	}
	ledger, err := ledger.Open(stateDir(c), ledger.WithRecovery(oci.RecoverClaim))
	return ledger, file, err
}

// findClaim finds a claim by its container's ID, a prefix of it, or its name.
func findClaim(claims []ledger.Claim, target string) (ledger.Claim, error) {
	var found []string
	byID := map[string]ledger.Claim{}
	for _, c := range claims {
		if byID[c.ContainerID] = c; c.ContainerID == target {
			return c, nil
		}
		if strings.HasPrefix(c.ContainerID, target) || c.Container == target {
			found = append(found, c.ContainerID)
		}
	}
	id, err := cluster.One("container", target, found, "gpuslice status -o wide")
	return byID[id], err
}

// checkResizable rejects claims that the scheduler or the config decides about.
func checkResizable(store *ledger.Ledger, claim ledger.Claim) error {
	if claim.Owner != ledger.OwnerRuntime {
		return fmt.Errorf("the scheduler reserves the shares of container %s of pod %s/%s: run gpuslice resize %s/%s:%s with a kubeconfig",
			claim.ContainerID, claim.PodNamespace, claim.PodName, claim.PodNamespace, claim.PodName, claim.Container)
	}
	record, err := orphans.Read(store.Dir(claim.ContainerID))
	if err != nil {
		return fmt.Errorf("container %s: %w", claim.ContainerID, err)
	}
	if record.Slice != "" {
		return fmt.Errorf("container %s has the slice %q: change the slice in the config, and run gpuslice cdi generate", claim.ContainerID, record.Slice)
	}
	return nil
}

// reserve resizes the claim. If a GPU is full, it releases orphans first.
func reserve(ctx context.Context, ledger *ledger.Ledger, id string, shares []grant.Share, gpus map[string]grant.GPU) ([]grant.Share, error) {
	before, err := ledger.Resize(ctx, id, shares, gpus, oci.Resize)
	if errors.Is(err, grant.ErrOverbooked) {
		snapshot, readErr := ledger.Snapshot(ctx)
		if readErr != nil {
			return before, err
		}
		releaser := orphans.Releaser{Ledger: ledger, Judge: orphans.NewJudge()}
		if swept, sweepErr := releaser.Sweep(ctx, snapshot); sweepErr == nil && swept {
			before, err = ledger.Resize(ctx, id, shares, gpus, oci.Resize)
		}
	}
	if errors.Is(err, limiter.ErrHalfWritten) {
		err = fmt.Errorf("%w: start gpuslice-agent, which fixes it, or restart the container", err)
	}
	return before, err
}

// findGPU finds the UUID of a GPU by an index, a UUID or a prefix of it.
func findGPU(f node.File, name string) (string, error) {
	var all []cluster.GPU
	for _, gpu := range f.Node.GPUs {
		all = append(all, cluster.GPU{UUID: gpu.UUID, Index: gpu.Index})
		for _, d := range gpu.MIG {
			all = append(all, cluster.GPU{UUID: d.UUID, Index: -1})
		}
	}
	return cluster.OneGPU(name, all, "gpuslice status")
}
