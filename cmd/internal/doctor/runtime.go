package doctor

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

type runtimeFacts struct {
	name    string // in CRI: "containerd", "cri-o"
	text    string
	version version
	err     error // then the others are empty
}

// version is a runtime's major, minor and patch version; the zero value is unknown.
type version [3]int

func (v version) known() bool { return v != version{} }

// before compares versions; an unknown one is never before.
func (v version) before(major, minor, patch int) bool {
	return v.known() && slices.Compare(v[:], []int{major, minor, patch}) < 0
}

// VersionBefore reports whether a version is older; an unknown one is not.
func VersionBefore(text string, major, minor, patch int) bool {
	_, v := parseVersion(text)
	return v.before(major, minor, patch)
}

// versionPattern finds "v1.7.24~ds1" in the output of `containerd --version`.
var versionPattern = regexp.MustCompile(`\bv?(\d{1,4})\.(\d{1,4})\.(\d{1,4})[^\s]*`)

func parseVersion(text string) (shown string, v version) {
	m := versionPattern.FindStringSubmatch(text)
	if m == nil {
		return "", v
	}
	for i := range v {
		v[i], _ = strconv.Atoi(m[i+1])
	}
	return m[0], v
}

func findRuntime(ctx context.Context, h Host, socket string) runtimeFacts {
	name, text, err := h.RuntimeVersion(ctx, socket)
	if err != nil {
		name = "containerd"
		var otherErr error
		text, otherErr = h.Output(ctx, "containerd", "--version")
		if otherErr != nil {
			return runtimeFacts{err: errors.Join(err, otherErr)}
		}
	}
	shown, v := parseVersion(text)
	if !v.known() {
		return runtimeFacts{name: name, err: fmt.Errorf("invalid version %q", text)}
	}
	return runtimeFacts{name: name, text: shown, version: v}
}

// checkRuntime checks which fail-closed layers (docs/ARCHITECTURE.md) the runtime supports.
func checkRuntime(_ context.Context, e *exam, v *verdict) {
	r := e.runtime
	switch {
	case r.err != nil:
		v.fail("no container runtime found: "+oneLine(r.err), "start containerd, or set --runtime-socket")
	case r.name == "cri-o" && r.version.before(1, 34, 0):
		v.warn("CRI-O "+r.text+": NRI without validation: if the agent misses a request, the container is created without a GPU and without limits", "upgrade CRI-O to 1.34 or newer")
	case r.name == "cri-o":
		v.ok("CRI-O " + r.text + ": supports all fail-closed layers")
	case r.name != "containerd":
		v.fail(r.name+" "+r.text+": not supported by gpuslice", "use containerd 2.2 or newer")
	case r.version.before(1, 7, 0):
		v.fail("containerd "+r.text+" has no NRI", "upgrade containerd to 2.2 or newer")
	case r.version.before(1, 7, 26), !r.version.before(2, 0, 0) && r.version.before(2, 0, 3):
		v.warn("containerd "+r.text+": no validation, and the agent can miss a container that is created while it connects",
			"upgrade containerd to 2.2 or newer (at least 1.7.26 or 2.0.3)")
	case r.version.before(2, 2, 0):
		v.warn("containerd "+r.text+": NRI without validation: if the agent misses a request, the container is created without a GPU, and changes of a grant by another plugin are not detected",
			"upgrade containerd to 2.2 or newer")
	default:
		v.ok("containerd " + r.text + ": supports all fail-closed layers")
	}
}
