// Package kueue checks the manifests of docs/KUEUE.md with Kueue's types and the schemas of its resources; with the tag kueue it
// runs Kueue's controller (test/tools-kueue) on them, beside our scheduler and webhook. A module of its own: only it imports Kueue.
package kueue
