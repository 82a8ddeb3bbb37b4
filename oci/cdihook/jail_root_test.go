//go:build root

package cdihook

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// An image that leads ldconfig to a directory of the host by the links of a procfs: by its
// configuration, its auxiliary cache, and a library with a path as its soname.
func TestImageThatLeadsOutOfItsRoot(t *testing.T) {
	ours := strconv.Itoa(os.Getpid())
	for _, test := range []struct {
		name   string
		links  string // of a process, where the image looks for them
		change func(*rspec.Spec)
	}{
		{name: "the container's own", links: "/proc/1"},
		{name: "with the host's processes", links: "/proc/" + ours, change: func(s *rspec.Spec) {
			s.Linux.Namespaces = s.Linux.Namespaces[1:]
		}},
		{name: "a volume with a name that the kernel escapes", links: "/host proc/" + ours, change: func(s *rspec.Spec) {
			s.Linux.Namespaces = s.Linux.Namespaces[1:]
			s.Mounts = append(s.Mounts, rspec.Mount{Destination: "/host proc", Source: "/proc", Options: []string{"rbind"}})
		}},
		{name: "in a user namespace", links: "/proc/1", change: func(s *rspec.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, rspec.LinuxNamespace{Type: rspec.UserNamespace})
			mapping := []rspec.LinuxIDMapping{{ContainerID: 0, HostID: 0, Size: 1 << 16}}
			s.Linux.UIDMappings, s.Linux.GIDMappings = mapping, mapping
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			host := t.TempDir()
			require.NoError(t, os.Symlink("usr-bin", filepath.Join(host, "bin")))
			escape := test.links + "/root" + host
			root := image(t, map[string]string{
				"etc/ld.so.conf":     "/d\n" + escape + "\n",
				"var/cache/ldconfig": "->" + escape,
				"driver/":            "", "proc/": "", "d/": "",
			})
			library(t, filepath.Join(root, "d/libnew.so"), ".."+escape+"/libnew.so.1")
			library(t, filepath.Join(root, "d/libbin.so"), ".."+escape+"/bin")
			library(t, filepath.Join(root, "driver/libcuda.so.550"), "libcuda.so.1")

			out, err := runc(t, root, test.change, "update-ldcache", "--folder", "/driver")
			require.NoError(t, err, out)
			target, err := os.Readlink(filepath.Join(root, "driver/libcuda.so.1"))
			require.NoError(t, err, "the work is done: %s", out)
			require.Equal(t, "libcuda.so.550", target)
			cache, err := os.ReadFile(filepath.Join(root, "etc/ld.so.cache"))
			require.NoError(t, err)
			require.Contains(t, string(cache), "/driver/libcuda.so.1")

			left, err := os.ReadDir(host)
			require.NoError(t, err)
			require.Len(t, left, 1, "nothing is made on the host: %v", left)
			target, err = os.Readlink(filepath.Join(host, "bin"))
			require.NoError(t, err)
			require.Equal(t, "usr-bin", target)
		})
	}
}

// A program in the jail has two capabilities and sees only its own processes.
func TestJail(t *testing.T) {
	root := image(t, map[string]string{"file": "the container's"})
	r, err := openRoot(root)
	require.NoError(t, err)
	defer r.close()
	jailed := func(args ...string) string {
		output, err := runInJail("/bin/busybox", r.file, args) // static
		require.NoError(t, err, "%s", output)
		return string(output)
	}
	require.Equal(t, "program\nroot", jailed("ls", "/"))
	require.Equal(t, "the container's", jailed("cat", "/root/file"))
	require.Equal(t, "1", jailed("sh", "-c", "echo $$"))
	require.Equal(t, "/", jailed("pwd"))

	status := statusInJail(t, r)
	require.Equal(t, fmt.Sprintf("%016x", jailCapabilities), status["CapEff"])
	require.Equal(t, fmt.Sprintf("%016x", jailCapabilities), status["CapPrm"])
	require.Equal(t, fmt.Sprintf("%016x", jailCapabilities), status["CapBnd"])
	require.Equal(t, fmt.Sprintf("%016x", 0), status["CapInh"])
	require.Equal(t, "1", status["NoNewPrivs"])

	_, err = runInJail("/bin/busybox", r.file, []string{"touch", "/file"})
	require.Error(t, err, "the jail's own root is read-only")
	require.FileExists(t, "/proc/self/status", "this process has its own mounts still")
}

// statusInJail is proc_pid_status(5) of a program in a jail, as seen from here.
func statusInJail(t *testing.T, r *root) map[string]string {
	t.Helper()
	fifo := filepath.Join(r.dir, "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	done := make(chan error, 1)
	go func() {
		_, err := runInJail("/bin/busybox", r.file, []string{"cat", "/root/fifo"})
		done <- err
	}()
	f, err := os.OpenFile(fifo, os.O_WRONLY, 0) // until it reads
	require.NoError(t, err)
	defer func() {
		require.NoError(t, f.Close())
		require.NoError(t, <-done)
	}()
	pids, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, pid := range pids {
		data, err := os.ReadFile(pid)
		if err != nil || string(data) != "/bin/busybox\x00cat\x00/root/fifo\x00" {
			continue
		}
		data, err = os.ReadFile(filepath.Join(filepath.Dir(pid), "status"))
		require.NoError(t, err)
		status := map[string]string{}
		for line := range strings.Lines(string(data)) {
			name, value, _ := strings.Cut(line, ":")
			status[name] = strings.TrimSpace(value)
		}
		return status
	}
	require.Fail(t, "the program in the jail is not among the processes")
	return nil
}

// A host with a script as ldconfig (Alpine) has none that can be used: never does the
// image's shell run it.
func TestLdconfigThatIsAScript(t *testing.T) {
	shell, err := os.ReadFile("/bin/busybox")
	require.NoError(t, err)
	root := image(t, map[string]string{"bin/sh": string(shell)})
	require.NoError(t, os.Chmod(filepath.Join(root, "bin/sh"), 0o755))
	script := filepath.Join(t.TempDir(), "ldconfig")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\necho run >/ran\n"), 0o755))
	for _, program := range []string{script, "/bin/ls"} { // linked dynamically
		status, stderr := call(state(t, root), "update-ldcache", "--ldconfig-path", program, "--folder", "/opt")
		require.Zero(t, status, stderr)
		require.Contains(t, stderr, "a script or linked dynamically")
		require.NoFileExists(t, filepath.Join(root, "ran"))
	}
}

// library builds a shared library that prints its name.
func library(t *testing.T, path, soname string) {
	t.Helper()
	cmd := exec.Command("gcc", "-shared", "-nostdlib", "-x", "c", "-o", path, "-Xlinker", "-soname="+soname, "/dev/null")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// runc makes a container of a root directory with a hook, and runs it.
func runc(t *testing.T, root string, change func(*rspec.Spec), hook ...string) (out string, err error) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	busybox, err := os.ReadFile("/bin/busybox")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(root, "busybox"), busybox, 0o755))
	spec := &rspec.Spec{
		Version: "1.0.2",
		Root:    &rspec.Root{Path: root},
		Process: &rspec.Process{Args: []string{"/busybox", "true"}, Cwd: "/", NoNewPrivileges: true},
		Mounts:  []rspec.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
		Linux:   &rspec.Linux{Namespaces: []rspec.LinuxNamespace{{Type: rspec.PIDNamespace}, {Type: rspec.MountNamespace}}},
		Hooks: &rspec.Hooks{CreateContainer: []rspec.Hook{{
			Path: self, Args: append([]string{"gpuslice-runtime"}, hook...), Env: []string{hookEnv + "=1"},
		}}},
	}
	if change != nil {
		change(spec)
	}
	bundle := t.TempDir()
	data, err := json.Marshal(spec)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(bundle, "config.json"), data, fs.FileMode(0o600)))
	id := "jail-" + filepath.Base(filepath.Dir(bundle)) + "-" + filepath.Base(bundle)
	output, err := exec.Command("runc", "--root", filepath.Join(t.TempDir(), "runc"), "run", "--bundle", bundle, id).CombinedOutput()
	return string(output), err
}
