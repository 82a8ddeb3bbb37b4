// Package orphans finds out whether the container of a claim is there, and gives claims
// back whose containers are gone without a word: those of runtimes, shims and daemons that
// were killed. It is about claims of grant.OwnerRuntime, which have a record of their
// making beside the ledger's own: runtime.json, see [Record]. Nobody lists their containers,
// as the CRI lists the agent's.
//
// The runtime wrapper and the slices' hook write it; both sweep before they book, and so
// does the agent. It imports grant and limiter.
package orphans
