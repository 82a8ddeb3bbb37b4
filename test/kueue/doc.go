// Package kueue checks the manifests of docs/KUEUE.md with Kueue's types and the schemas of its resources. A module of its own: only
// it imports Kueue.
package kueue
