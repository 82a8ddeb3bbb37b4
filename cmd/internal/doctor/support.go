package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// support is a row of the supported container runtimes: which of the layers that fail closed (docs/FAULTS.md) it has.
type support struct {
	versions string // as in the documents
	runtime  string
	ranges   []versionRange
	tested   string
	// connects: no container is created unseen while the agent connects.
	// validates: a container is refused if the agent's answer was lost, or changed by another plugin.
	// requires: pods can require the agent (NRI's default validator).
	// cleansUp: pods that are too large are refused; other versions exit at the next start after that.
	// barrier: `gpuslice install containerd` puts gpuslice-runtime in front of NVIDIA's runtime.
	connects, validates, requires, cleansUp, barrier bool
}

// versionRange is from a version to before another one; a zero end is open.
type versionRange struct{ from, before version }

// The versions of NRI are those in the runtimes' modules (NRI's runtimeVersionMap).
var supported = []support{
	{versions: "containerd 1.7 before 1.7.26, 2.0 before 2.0.3", runtime: "containerd",
		ranges: []versionRange{{version{1, 7, 0}, version{1, 7, 26}}, {version{2, 0, 0}, version{2, 0, 3}}}, barrier: true},
	{versions: "containerd 1.7.26, 2.0.3, 2.1", runtime: "containerd",
		ranges: []versionRange{{version{1, 7, 26}, version{2, 0, 0}}, {version{2, 0, 3}, version{2, 2, 0}}}, tested: "1.7.35: test/node", connects: true, barrier: true},
	{versions: "containerd 2.2 before 2.2.6, 2.3 before 2.3.3", runtime: "containerd",
		ranges:   []versionRange{{version{2, 2, 0}, version{2, 2, 6}}, {version{2, 3, 0}, version{2, 3, 3}}},
		connects: true, validates: true, requires: true, barrier: true},
	{versions: "containerd 2.2.6, 2.3.3, 2.4", runtime: "containerd",
		ranges: []versionRange{{version{2, 2, 6}, version{2, 3, 0}}, {from: version{2, 3, 3}}}, tested: "2.4.2: every suite",
		connects: true, validates: true, requires: true, cleansUp: true, barrier: true},
	{versions: "CRI-O 1.26 to 1.31", runtime: "cri-o", ranges: []versionRange{{version{1, 26, 0}, version{1, 32, 0}}}},
	{versions: "CRI-O 1.32, 1.33", runtime: "cri-o", ranges: []versionRange{{version{1, 32, 0}, version{1, 34, 0}}}, connects: true},
	{versions: "CRI-O 1.34 or newer", runtime: "cri-o", ranges: []versionRange{{from: version{1, 34, 0}}}, tested: "1.36.3: test/node",
		connects: true, validates: true, requires: true},
}

// supportOf returns the row of a runtime.
func supportOf(r runtimeFacts) (support, bool) {
	i := slices.IndexFunc(supported, func(s support) bool {
		return s.runtime == r.name && slices.ContainsFunc(s.ranges, func(of versionRange) bool {
			return slices.Compare(r.version[:], of.from[:]) >= 0 && (of.before == version{} || slices.Compare(r.version[:], of.before[:]) < 0)
		})
	})
	if i < 0 {
		return support{}, false
	}
	return supported[i], true
}

// lacks are the row's missing layers, by their consequences.
func (s support) lacks() (all []string) {
	for _, layer := range []struct {
		has  bool
		what string
	}{
		{s.connects, "the agent can miss a container that is created while it connects"},
		{s.validates, "no validation: if the agent misses a request, the container is created without a GPU, and changes of a grant by another plugin are not detected"},
		{s.requires, "pods can't require the agent"},
		{s.cleansUp, "pods that are too large are not refused"},
		{s.barrier, "gpuslice-runtime can't be put in front of NVIDIA's runtime by gpuslice install"},
	} {
		if !layer.has {
			all = append(all, layer.what)
		}
	}
	return all
}

// SupportTable is the table of the documents.
func SupportTable() string {
	var b strings.Builder
	b.WriteString("| runtime | misses no container while the agent connects | validates: a lost request is refused | pods can require the agent | refuses pods that are too large | the barrier by `gpuslice install` | tested |\n|---|---|---|---|---|---|---|\n")
	yes := map[bool]string{true: "yes", false: "no"}
	for _, s := range supported {
		tested := s.tested
		if tested == "" {
			tested = "not run"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", s.versions, yes[s.connects], yes[s.validates], yes[s.requires], yes[s.cleansUp], yes[s.barrier], tested)
	}
	return b.String()
}
