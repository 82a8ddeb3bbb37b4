//go:build e2e

package e2e_test

import (
	"context"

	"github.com/gpuslice/gpuslice/test/harness"
)

// restart is what an operator, or a bad day, does to a node while it is at work.
type restart struct {
	name string
	do   func(ctx context.Context) error
}

// restarts are those of all but the scheduler.
var restarts = []restart{
	{"agent", func(ctx context.Context) error { return cluster.RestartAgentWith(ctx) }},
	// The end of a killed device plugin is noticed late.
	{"agent, killed", rejecting(func(ctx context.Context) error { return cluster.RestartAgent(ctx) })},
	// A kubelet that starts can admit the pods that were bound meanwhile before it has listed the devices.
	{"kubelet", rejecting(func(ctx context.Context) error {
		if err := cluster.Kubelet.Stop(harness.StopPatience); err != nil {
			return err
		}
		return cluster.StartKubelet(ctx)
	})},
	{"kubelet, killed", rejecting(func(ctx context.Context) error {
		cluster.Kubelet.Kill()
		return cluster.StartKubelet(ctx)
	})},
	{"containerd", func(ctx context.Context) error {
		cluster.Containerd.Kill()
		return cluster.Containerd.Start(ctx)
	}},
	{"API server", func(ctx context.Context) error {
		cluster.APIServer.Kill()
		return cluster.StartAPIServer(ctx)
	}},
	{"etcd", func(ctx context.Context) error {
		cluster.Etcd.Kill()
		return cluster.StartEtcd(ctx)
	}},
}

// rejecting is a restart in which the kubelet may fail pods for good, because it has no healthy device when it admits
// them. It ends when the node offers its GPUs again.
func rejecting(do func(ctx context.Context) error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		followed.tolerate(true)
		defer followed.tolerate(false)
		if err := do(ctx); err != nil {
			return err
		}
		return cluster.WaitNode(ctx)
	}
}
