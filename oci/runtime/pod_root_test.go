//go:build root

package ociruntime

import (
	"path/filepath"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/oci"
)

// A container with CAP_SYS_ADMIN can open GPUs without a grant: the runtime's log has a warning.
func TestAdminIsWarnedOf(t *testing.T) {
	admin := func(s *rspec.Spec) {
		s.Process.Capabilities.Bounding = append(s.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
	}
	for description, test := range map[string]struct {
		namespace string
		change    func(*rspec.Spec)
		warned    bool
	}{
		"a pod without the capability": {"k8s.io", func(*rspec.Spec) {}, false},
		"a pod":                        {"k8s.io", admin, true},
		"a pod of an exempt namespace": {"k8s.io", func(s *rspec.Spec) { admin(s); s.Annotations[criNamespace] = "gpuslice-system" }, false},
		"a container with a share":     {"moby", func(s *rspec.Spec) { admin(s); s.Annotations = nil }, true},
		"a container without a share": {"moby", func(s *rspec.Spec) {
			admin(s)
			s.Annotations, s.Process.Env = nil, nil
		}, true},
		"a container with a user namespace": {"moby", func(s *rspec.Spec) {
			admin(s)
			s.Annotations = nil
			s.Linux.Namespaces = append(s.Linux.Namespaces, rspec.LinuxNamespace{Type: rspec.UserNamespace})
		}, false},
	} {
		t.Run(description, func(t *testing.T) {
			p := newPods(t)
			_, output := p.create(t, test.namespace, test.change)
			require.NotEmpty(t, p.ran, output)
			require.NotContains(t, output, "CAP_SYS_ADMIN", "stderr is the container's, too")
			log := read(t, filepath.Join(p.dir, "log"))
			if !test.warned {
				require.NotContains(t, log, "level=warning")
				return
			}
			require.Regexp(t, `level=warning msg="gpuslice: container `+oci.ShortID(id)+` has CAP_SYS_ADMIN: it can replace its limits and, on nodes with cgroup v1, open every GPU \(docs/SECURITY.md`, log)
		})
	}
}
