//go:build e2e

package e2e_test

import "context"

// schedulerRestarts are restarts of the scheduler, in the same words as the others.
var schedulerRestarts = []restart{
	{"scheduler", func(ctx context.Context) error { return cluster.RestartScheduler(ctx) }},
	{"scheduler, killed", func(ctx context.Context) error { return cluster.KillScheduler(ctx) }},
}
