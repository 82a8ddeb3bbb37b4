// Package admission is what a cluster is given for admission: webhook.yaml is the webhook and its rights,
// configurations.yaml what the API server asks it, policy.yaml what the API server enforces
// without it. The files stand for themselves (kubectl apply -f); tests read them here.
package admission

import "embed"

// Files are the manifests.
//
//go:embed *.yaml
var Files embed.FS
