// Package orphans releases claims of ledger.OwnerRuntime after their containers ended without a report,
// because a runtime, shim or daemon was killed. Write a [Record] beside each claim, and call Releaser.Sweep
// before a new one.
package orphans
