package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/grant"
)

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
