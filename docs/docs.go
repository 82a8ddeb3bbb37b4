// Package docs embeds pages from which programs print.
package docs

import _ "embed"

// Migrating is the page for users of HAMi and gpu-manager.
//
//go:embed MIGRATING.md
var Migrating string
