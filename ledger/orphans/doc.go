// Package orphans finds and releases the claims of containers that are gone, and that no runtime reported as
// ended: a runtime, shim or daemon was killed. It handles claims of ledger.OwnerRuntime, which no CRI lists.
// The OCI wrapper and the slices' hook write a [Record] beside each of these claims; they and the agent call
// Releaser.Sweep before they reserve.
package orphans
