package kube

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuslice/gpuslice/test/harness"
)

// RestartAgentWith replaces the agent's pod, by one with further arguments, none of which the next call keeps.
func (c *Cluster) RestartAgentWith(ctx context.Context, more ...string) error {
	changed, err := c.setAgentArgs(ctx, more)
	if err != nil {
		return err
	}
	if !changed {
		return c.replace(ctx, "agent")
	}
	return c.WaitRelease(ctx)
}

// setAgentArgs sets the agent's arguments, and reports whether they changed.
func (c *Cluster) setAgentArgs(ctx context.Context, more []string) (changed bool, err error) {
	sets := c.API.AppsV1().DaemonSets(Namespace)
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		set, err := sets.Get(ctx, AgentName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		args := &set.Spec.Template.Spec.Containers[0].Args
		if c.agentArgs == nil {
			c.agentArgs = slices.Clone(*args)
		}
		want := slices.Concat(c.agentArgs, more)
		if changed = !slices.Equal(*args, want); !changed {
			return nil
		}
		*args = want
		_, err = sets.Update(ctx, set, metav1.UpdateOptions{})
		return err
	})
	return changed, err
}

// replace deletes the pods of a part, and waits until there are others.
func (c *Cluster) replace(ctx context.Context, component string) error {
	old, err := podsOf(ctx, c.API, component)
	if err != nil {
		return err
	}
	for _, p := range old {
		if err := c.API.CoreV1().Pods(Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	err = harness.Until(ctx, patience, func(ctx context.Context) error {
		now, err := podsOf(ctx, c.API, component)
		if err != nil {
			return err
		}
		for _, p := range now {
			for _, o := range old {
				if p.UID == o.UID {
					return fmt.Errorf("pod %s is still there", p.Name)
				}
			}
		}
		if len(now) < len(old) {
			return fmt.Errorf("there are %d pods of the %s", len(now), component)
		}
		return nil
	})
	return errors.Join(err, c.WaitRelease(ctx))
}

// RestartAgent kills the agent's process; the kubelet starts it again.
func (c *Cluster) RestartAgent(ctx context.Context) error {
	if err := c.KillPods(ctx, "agent"); err != nil {
		return err
	}
	return c.WaitRelease(ctx)
}

// KillPods kills the processes of a part with SIGKILL, and waits until the kubelet has started others.
func (c *Cluster) KillPods(ctx context.Context, component string) error {
	pods, err := podsOf(ctx, c.API, component)
	if err != nil {
		return err
	}
	if len(pods) == 0 {
		return fmt.Errorf("there are no pods of the %s", component)
	}
	restarts := map[string]int32{}
	for i := range pods {
		for _, s := range pods[i].Status.ContainerStatuses {
			if s.State.Running == nil {
				continue
			}
			restarts[pods[i].Name] = s.RestartCount
			if err := harness.KillContainer(c.Containerd, strings.TrimPrefix(s.ContainerID, "containerd://")); err != nil {
				return err
			}
		}
	}
	return harness.Until(ctx, patience, func(ctx context.Context) error {
		pods, err := podsOf(ctx, c.API, component)
		if err != nil {
			return err
		}
		for i := range pods {
			for _, s := range pods[i].Status.ContainerStatuses {
				if before, was := restarts[pods[i].Name]; was && s.RestartCount <= before {
					return fmt.Errorf("pod %s was not started again", pods[i].Name)
				}
			}
		}
		return nil
	})
}

// healthyDevices is how many devices of a resource the kubelet can give to a pod now. The Node object has a
// number that is seconds old.
func (c *Cluster) healthyDevices(ctx context.Context, resource string) (int, error) {
	conn, err := grpc.NewClient("unix:"+c.podResourcesSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	answer, err := podresources.NewPodResourcesListerClient(conn).GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return 0, fmt.Errorf("ask the kubelet for its devices: %w", err)
	}
	count := 0
	for _, d := range answer.GetDevices() {
		if d.GetResourceName() == resource {
			count += len(d.GetDeviceIds())
		}
	}
	return count, nil
}

func (c *Cluster) podResourcesSocket() string {
	return filepath.Join(c.kubeletRoot(), "pod-resources", "kubelet.sock")
}
