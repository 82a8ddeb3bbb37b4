package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
	"github.com/gpuslice/gpuslice/grant"
)

// resizePod has a pod's container resized by the scheduler, and waits for it and for the node.
func resizePod(c *cobra.Command, target string, o resizeOptions) error {
	if o.size.Percent != 0 {
		return fmt.Errorf("--memory %s: of a pod's GPU the size isn't known here: name MiB or GiB", o.memory)
	}
	if o.gpu != "" {
		if err := grant.ValidateUUID(o.gpu); err != nil {
			return fmt.Errorf("--gpu %s: %w", o.gpu, err)
		}
	}
	namespace, name, container, err := podName(target)
	if err != nil {
		return err
	}
	connection, err := connect(c)
	if err != nil {
		return work(err)
	}
	namespace = cmp.Or(namespace, connection.Namespace)
	ctx, cancel := context.WithTimeout(c.Context(), o.timeout)
	defer cancel()
	return work(o.resizePod(ctx, c, connection, namespace, name, container))
}

func (o *resizeOptions) resizePod(ctx context.Context, c *cobra.Command, connection *cluster.Cluster, namespace, name, container string) error {
	pod, err := connection.Pod(ctx, namespace, name)
	if err != nil {
		return err
	}
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
		return fmt.Errorf("container %q of pod %s/%s: %w", container, namespace, name, err)
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
		fmt.Fprintf(c.OutOrStdout(), "pod %s/%s, container %s, GPU %s: %s\n", namespace, name, container, s.UUID, change(before[i], s))
	}
	switch err := connection.Applied(ctx, resized, container, now); {
	case errors.Is(err, cluster.ErrNotApplied):
		return fmt.Errorf("it is booked, and not in force: %w", err)
	case err != nil:
		fmt.Fprintf(c.ErrOrStderr(), "gpuslice: it is booked; whether it is in force isn't known: %v\n", err)
	default:
		fmt.Fprintf(c.OutOrStdout(), "in force on node %s\n", resized.Spec.NodeName)
	}
	return nil
}

// answerPatience is how long the scheduler and the node may take.
const answerPatience = 30 * time.Second
