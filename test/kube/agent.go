package kube

import (
	"context"
	"os"
	"path/filepath"

	"github.com/gpuslice/gpuslice/test/harness"
)

// startAgent gives the agent its rights in the cluster and starts it.
func (c *Cluster) startAgent(ctx context.Context) error {
	root, err := harness.Repository()
	if err != nil {
		return err
	}
	rights, err := os.ReadFile(filepath.Join(root, "install", "agent-rbac.yaml"))
	if err != nil {
		return err
	}
	if err := c.Apply(ctx, rights); err != nil {
		return err
	}
	if err := c.setAgentArgs(); err != nil {
		return err
	}
	return c.StartAgent(ctx)
}

// setAgentArgs tells the agent where the cluster is, and more.
func (c *Cluster) setAgentArgs(more ...string) error {
	kubeconfig, err := c.Kubeconfig(Agent)
	if err != nil {
		return err
	}
	args := []string{
		"--kubernetes-api=on", "--kubeconfig=" + kubeconfig,
		"--device-plugin-dir=" + c.DevicePluginDir(),
		"--pod-resources-socket=" + c.podResourcesSocket(),
	}
	args = append(args, c.options.AgentArgs...)
	c.SetAgentArgs(append(args, more...)...)
	return nil
}

// RestartAgentWith stops the agent and starts it with further arguments, none of which
// the next call keeps.
func (c *Cluster) RestartAgentWith(ctx context.Context, more ...string) error {
	if err := stop(c.Agent); err != nil {
		return err
	}
	if err := c.setAgentArgs(more...); err != nil {
		return err
	}
	return c.StartAgent(ctx)
}
