//go:build e2e

package e2e_test

import "context"

// schedulerRestarts are restarts of the scheduler, in the same words as the others.
var schedulerRestarts = []restart{
	{"scheduler", func(ctx context.Context) error {
		if err := cluster.StopScheduler(ctx); err != nil {
			return err
		}
		return cluster.StartScheduler(ctx)
	}},
	{"scheduler, killed", func(ctx context.Context) error {
		cluster.KillScheduler()
		return cluster.StartScheduler(ctx)
	}},
}
