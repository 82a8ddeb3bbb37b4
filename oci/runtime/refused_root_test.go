//go:build root

package ociruntime

import (
	"os"
	"path/filepath"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/oci"
)

// docker's default containers may make device nodes, so that a rule of the device cgroup
// is a GPU.
func TestDeviceCgroupRules(t *testing.T) {
	all, major, minor, misc := int64(-1), int64(195), int64(0), int64(10)
	rule := func(kind string, major, minor int64) rspec.LinuxDeviceCgroup {
		return rspec.LinuxDeviceCgroup{Allow: true, Type: kind, Major: &major, Minor: &minor, Access: "rwm"}
	}
	privileged := func(s *rspec.Spec) {
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, rule("a", all, all))
		s.Process.Capabilities.Bounding = append(s.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
		s.Linux.Devices = []rspec.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: 195}}
	}
	with := func(rules ...rspec.LinuxDeviceCgroup) func(*rspec.Spec) {
		return func(s *rspec.Spec) { s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, rules...) }
	}
	driver := rspec.Mount{Destination: "/usr/lib/x86_64-linux-gnu/libcuda.so.570.1", Type: "bind", Source: "/usr/lib/x86_64-linux-gnu/libcuda.so.570.1"}
	for _, c := range []struct {
		description string
		request     bool
		change      func(*rspec.Spec)
		want        string // empty: it may be made
	}{
		{"every device", false, with(rule("a", all, all)), `the rule "a *:* rwm"`},
		{"every character device", false, with(rule("c", all, all)), `the rule "c *:* rwm"`},
		{"the driver's", false, with(rule("c", major, all)), `the rule "c 195:* rwm"`},
		{"another driver's", false, with(rule("c", misc, minor)), ""},
		{"every device, with a request", true, with(rule("a", all, all)), `the rule "a *:* rwm", by which it can make the node of a GPU, which is not of its grant`},
		{"another GPU's, with a request", true, with(rule("c", major, 7)), `the rule "c 195:7 rwm"`},
		{"the control node's, with a request", true, with(rule("c", major, 255)), ""},
		{"privileged", false, privileged, ""},
		{"privileged, with a request", true, privileged, ""},
		{"privileged, with a CDI device's libraries", false, func(s *rspec.Spec) {
			privileged(s)
			s.Mounts = append(s.Mounts, driver)
		}, "requests no GPU share, but the driver's library /usr/lib/x86_64-linux-gnu/libcuda.so.570.1 is mounted into it"},
	} {
		t.Run(c.description, func(t *testing.T) {
			b := newBench(t)
			name := map[bool]string{false: "docker-20-nothing", true: "docker-20"}[c.request]
			path := filepath.Join(b.bundle(t, name), configName)
			bundle, err := OpenBundle(path)
			require.NoError(t, err)
			c.change(bundle.Spec)
			require.NoError(t, bundle.Save())
			require.NoError(t, os.Remove(beside(path, originalSuffix)))
			err = b.make(filepath.Dir(path))
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
			require.Empty(t, b.claims(t))
			// A hook that comes without the wrapper finds the same.
			if !c.request {
				_, output, status := b.hook(state(t, filepath.Dir(path)), "createRuntime")
				require.Equal(t, exitFailed, status)
				require.Contains(t, output, "has no limits")
			}
		})
	}
}

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
				require.NotContains(t, log, "CAP_SYS_ADMIN")
				return
			}
			require.Regexp(t, `level=warning msg="gpuslice: container `+oci.ShortID(id)+` has CAP_SYS_ADMIN: it can replace its limits and, on nodes with cgroup v1, open every GPU \(docs/SECURITY.md`, log)
		})
	}
}
