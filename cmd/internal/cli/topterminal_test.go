package cli

import (
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/test/nodetest"
)

func terminalNode(t *testing.T) *nodetest.StateDir {
	s := nodetest.NewStateDir(t)
	s.Claim("c-train", "train", grant.Share{UUID: nodetest.H200, MemoryMiB: 40000, CorePercent: 30})
	s.Claim("c-infer", "infer", grant.Share{UUID: nodetest.T4, MemoryMiB: 4000, CorePercent: 50})
	s.Use("c-train", 0, 30000<<20)
	s.Use("c-infer", 0, 1000<<20)
	return s
}

// order returns the visible pods from the top.
func order(screen string) string {
	var pods []string
	for line := range strings.Lines(screen) {
		if first, _, _ := strings.Cut(line, " "); strings.HasPrefix(first, "default/") {
			pods = append(pods, strings.TrimPrefix(first, "default/"))
		}
	}
	return strings.Join(pods, " ")
}
