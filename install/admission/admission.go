// Package admission embeds the manifests of the webhook and of the admission policies, for tests.
package admission

import "embed"

// Files are the manifests.
//
//go:embed *.yaml
var Files embed.FS
