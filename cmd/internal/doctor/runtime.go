package doctor

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
)

// runtimeFacts is which container runtime the node has.
type runtimeFacts struct {
	name    string // as CRI has it: "containerd", "cri-o"
	text    string // its version as it was told
	version version
	err     error // why the others are empty
}

// version is a runtime's. The zero value is an unknown one.
type version struct{ major, minor, patch int }

func (v version) known() bool { return v != version{} }

// before compares; an unknown version is before none.
func (v version) before(major, minor, patch int) bool {
	if !v.known() {
		return false
	}
	if v.major != major {
		return v.major < major
	}
	if v.minor != minor {
		return v.minor < minor
	}
	return v.patch < patch
}

// versionPattern finds a version in "v1.7.24~ds1" or in what `containerd --version`
// prints. A word boundary keeps it from the "v2" of a module's path.
var versionPattern = regexp.MustCompile(`\bv?(\d{1,4})\.(\d{1,4})\.(\d{1,4})[^\s]*`)

func parseVersion(text string) (shown string, v version) {
	m := versionPattern.FindStringSubmatch(text)
	if m == nil {
		return "", version{}
	}
	number := func(s string) int {
		n, _ := strconv.Atoi(s) // at most four digits
		return n
	}
	return m[0], version{number(m[1]), number(m[2]), number(m[3])}
}

// findRuntime asks the running daemon, and its program if it doesn't answer.
func findRuntime(ctx context.Context, h Host, socket string) runtimeFacts {
	name, told, err := h.RuntimeVersion(ctx, socket)
	if err != nil {
		name = "containerd"
		var otherErr error
		told, otherErr = h.Output(ctx, "containerd", "--version")
		if otherErr != nil {
			return runtimeFacts{err: errors.Join(err, otherErr)}
		}
	}
	text, v := parseVersion(told)
	if !v.known() {
		return runtimeFacts{name: name, err: fmt.Errorf("its version can't be read: %q", told)}
	}
	return runtimeFacts{name: name, text: text, version: v}
}

// checkRuntime says which of the fail-closed layers (docs/ARCHITECTURE.md) the
// runtime's version carries.
func checkRuntime(_ context.Context, e *exam, v *verdict) {
	r := e.runtime
	switch {
	case r.err != nil:
		v.fail("no container runtime answers: "+oneLine(r.err), "start containerd, or name its socket: --runtime-socket")
	case r.name == "cri-o" && r.version.before(1, 34, 0):
		v.warn("CRI-O "+r.text+": its NRI validates nothing, so a request that is lost in the agent makes a container without its limits' edits (and without a GPU)", "CRI-O 1.34 or newer has every layer")
	case r.name == "cri-o":
		v.ok("CRI-O " + r.text + ": every fail-closed layer")
	case r.name != "containerd":
		v.fail(r.name+" "+r.text+": not a runtime that gpuslice knows", "use containerd 2.2 or newer")
	case r.version.before(1, 7, 0):
		v.fail("containerd "+r.text+" has no NRI that gpuslice can use", "upgrade containerd to 2.2 or newer")
	case r.version.before(1, 7, 26), !r.version.before(2, 0, 0) && r.version.before(2, 0, 3):
		v.warn("containerd "+r.text+": no validation, and a container that is created while the agent connects can be missed",
			"upgrade containerd to 2.2 or newer (at least 1.7.26 or 2.0.3)")
	case r.version.before(2, 2, 0):
		v.warn("containerd "+r.text+": NRI without validation; a request that is lost in the agent makes a container without a GPU, and nobody sees another plugin change a grant",
			"upgrade containerd to 2.2 or newer")
	default:
		v.ok("containerd " + r.text + ": every fail-closed layer")
	}
}
