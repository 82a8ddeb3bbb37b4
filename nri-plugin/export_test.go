package nriplugin

import "time"

// HasValidators is hasValidators, for the table of versions.
var HasValidators = hasValidators

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
	if why := p.unreconciled.Load(); why != nil {
		return *why
	}
	return nil
}
