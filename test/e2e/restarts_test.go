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
	{"agent, killed", func(ctx context.Context) error {
		// The kubelet fails a pod for good if it is bound while there is no device plugin, and the end of a
		// killed device plugin is noticed late.
		followed.tolerate(true)
		defer followed.tolerate(false)
		if err := cluster.RestartAgent(ctx); err != nil {
			return err
		}
		return cluster.WaitNode(ctx)
	}},
	{"kubelet", func(ctx context.Context) error {
		if err := cluster.Kubelet.Stop(harness.StopPatience); err != nil {
			return err
		}
		return cluster.StartKubelet(ctx)
	}},
	{"kubelet, killed", func(ctx context.Context) error {
		cluster.Kubelet.Kill()
		return cluster.StartKubelet(ctx)
	}},
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
