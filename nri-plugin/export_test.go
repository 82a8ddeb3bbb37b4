package nriplugin

import (
	"time"

	"github.com/containerd/nri/pkg/api"
)

// HasValidators is hasValidators of the version that is reported or inferred.
func HasValidators(reported, runtime, version string) bool {
	return hasValidators(nriVersion(reported, runtime, version))
}

// OptOuts counts the containers that requested to disable their limiter since the plugin started.
func (p *Plugin) OptOuts() (allowed, denied uint64) {
	return p.optedOut.Load(), p.optOutDenied.Load()
}

// FailurePolicy is what a runtime is asked to do about requests that are lost.
func FailurePolicy() *api.FailurePolicy { return failurePolicy }

// NoFailurePolicy makes plugins ask for none, as if the runtime's NRI was older than 0.12.5.
func NoFailurePolicy() (restore func()) {
	old := failurePolicy
	failurePolicy = &api.FailurePolicy{}
	return func() { failurePolicy = old }
}

// SetPatience shortens the connection's timeouts for a test.
func SetPatience(start, sync time.Duration) (restore func()) {
	oldStart, oldSync := startPatience, syncPatience
	startPatience, syncPatience = start, sync
	return func() { startPatience, syncPatience = oldStart, oldSync }
}

// SetReconcilePause changes how long a plugin that could not reconcile stays connected.
func SetReconcilePause(d time.Duration) (restore func()) {
	old := reconcilePause
	reconcilePause = d
	return func() { reconcilePause = old }
}

// Reconciled is why the last reconciliation failed, or nil.
func (p *Plugin) Reconciled() error {
	if reason := p.unreconciled.Load(); reason != nil {
		return *reason
	}
	return nil
}

// CleansUpPods is cleansUpPods.
var CleansUpPods = cleansUpPods

// HaveProcesses is haveProcesses.
var HaveProcesses = haveProcesses
