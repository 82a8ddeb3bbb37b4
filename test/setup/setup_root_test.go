//go:build root

package setup_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// installed is a package as dpkg's database has it.
func installed(name string, fields ...string) string {
	return strings.Join(append([]string{"Package: " + name, "Status: install ok installed", "Priority: optional", "Section: admin",
		"Maintainer: someone <someone@example.org>", "Architecture: all", "Version: 99:1", "Description: " + name}, fields...), "\n") + "\n\n"
}

// database writes dpkg's database of this machine, without some packages and with others.
func database(t *testing.T, without []string, with ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, sub := range []string{"info", "updates"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, sub), 0o755))
	}
	data, err := os.ReadFile("/var/lib/dpkg/status")
	require.NoError(t, err)
	var text strings.Builder
	for _, one := range strings.SplitAfter(string(data), "\n\n") {
		name := strings.TrimPrefix(strings.SplitN(one, "\n", 2)[0], "Package: ")
		if !slices.Contains(without, name) {
			text.WriteString(one)
		}
	}
	text.WriteString("\n" + strings.Join(with, ""))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "status"), []byte(text.String()), 0o644))
	return dir
}

// setUp runs the script on that database; apt only simulates. It returns what apt-get was called with.
func setUp(t *testing.T, database, argument string) (out string, calls []string, err error) {
	return run(t, database, exec.Command("../setup.sh", argument))
}

func run(t *testing.T, database string, cmd *exec.Cmd) (out string, calls []string, err error) {
	t.Helper()
	dir := t.TempDir()
	calling := filepath.Join(dir, "calls")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "apt-get"), []byte("#!/bin/sh\necho \"$*\" >>"+calling+
		"\n[ \"$1\" = update ] || exec /usr/bin/apt-get \"$@\"\n"), 0o755))
	config := filepath.Join(dir, "apt.conf")
	require.NoError(t, os.WriteFile(config, []byte("APT::Get::Simulate \"true\";\nDir::State::status \""+database+"/status\";\n"), 0o644))
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "APT_CONFIG="+config, "DPKG_ADMINDIR="+database)
	text, err := cmd.CombinedOutput()
	data, _ := os.ReadFile(calling)
	return string(text), strings.Split(strings.TrimSpace(string(data)), "\n"), err
}

// Docker's own packages conflict with Debian's: apt-get install -y would have removed them.
func TestInstallKeepsDockersPackages(t *testing.T) {
	status := database(t, []string{"docker.io", "containerd", "runc", "podman"},
		installed("docker-ce", "Depends: containerd.io", "Conflicts: docker.io", "Replaces: docker.io"),
		installed("containerd.io", "Conflicts: containerd, runc", "Replaces: containerd, runc", "Provides: containerd, runc"))
	out, calls, err := setUp(t, status, "--install")
	require.Error(t, err, out)
	require.NotContains(t, out, "Remv ")
	require.NotContains(t, out, "Inst ")
	require.Contains(t, out, "nothing was installed or removed")
	require.Contains(t, strings.Join(calls, "\n"), "install")
}

// Every installation names what it installs, and can't remove a package.
func TestInstallShowsAndRemovesNothing(t *testing.T) {
	for _, argument := range []string{"--install", "--check"} {
		out, calls, _ := setUp(t, database(t, []string{"shellcheck"}), argument)
		require.Contains(t, out, "installing packages, as root, without removing any: shellcheck", argument)
		require.Contains(t, strings.Join(calls, "\n"), "install", argument)
		for _, call := range calls {
			if call != "update -q" {
				require.Contains(t, call, "--no-remove", argument)
			}
		}
	}
}

// On a terminal the packages are installed only after a yes.
func TestInstallAsksOnATerminal(t *testing.T) {
	for answer, installs := range map[string]bool{"y\n": true, "n\n": false, "\n": false} {
		cmd := exec.Command("script", "-qec", "../setup.sh --check", "/dev/null")
		cmd.Stdin = strings.NewReader(answer)
		out, calls, _ := run(t, database(t, []string{"shellcheck"}), cmd)
		require.Contains(t, out, "these packages are missing: shellcheck. Install them")
		require.Equal(t, installs, slices.ContainsFunc(calls, func(call string) bool { return strings.Contains(call, "--no-remove") }), answer)
		require.Equal(t, installs, !strings.Contains(out, "make setup-tests"), answer)
	}
}

// For another user than root the missing packages are named, and apt is not called.
func TestMissingPackagesAreNamed(t *testing.T) {
	status := database(t, []string{"shellcheck"})
	require.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(status)), 0o755))
	for _, argument := range []string{"--check", "--helm", "--monitoring", "--kubernetes"} {
		cmd := exec.Command("setpriv", "--reuid=65534", "--clear-groups", "../setup.sh", argument)
		out, calls, err := run(t, status, cmd)
		require.Error(t, err, argument)
		require.Contains(t, out, "shellcheck", argument)
		require.Contains(t, out, "make setup-tests", argument)
		require.Equal(t, []string{""}, calls, argument)
	}
}

// What the demo needs can be there without a package.
func TestDemoAsksForNoPackage(t *testing.T) {
	out, calls, err := setUp(t, database(t, []string{"docker.io", "containerd", "podman", "shellcheck", "tmux", "zsh"}), "--demo")
	require.NoError(t, err, out)
	require.Equal(t, []string{""}, calls)
}

// archive has packages with the files of Debian's: completions, hooks and overrides have the program's name, too. It returns
// a configuration of apt that knows only this archive, and has no list of it.
func archive(t *testing.T) (config string) {
	t.Helper()
	dir := t.TempDir()
	var index strings.Builder
	for name, files := range map[string]map[string]string{
		"runc": {
			"usr/share/bash-completion/completions/runc": "", "usr/share/lintian/overrides/runc": "", "usr/sbin/runc": "runc",
			"etc/runc": "",
		},
		"busybox-static": {"usr/share/initramfs-tools/conf-hooks.d/busybox": "", "bin/busybox": "busybox"},
	} {
		root := filepath.Join(dir, "root", name)
		for file, program := range files {
			path := filepath.Join(root, file)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			if program == "" {
				require.NoError(t, os.WriteFile(path, []byte("# no program\n"), 0o644))
				continue
			}
			program, err := exec.LookPath(program)
			require.NoError(t, err)
			data, err := os.ReadFile(program)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, data, 0o755))
		}
		control := fmt.Sprintf("Package: %s\nVersion: 99:1\nArchitecture: %s\nMaintainer: someone <someone@example.org>\nDescription: %[1]s\n", name, runtime.GOARCH)
		require.NoError(t, os.Mkdir(filepath.Join(root, "DEBIAN"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, "DEBIAN/control"), []byte(control), 0o644))
		deb := filepath.Join(dir, name+".deb")
		out, err := exec.Command("dpkg-deb", "-Znone", "--root-owner-group", "--build", root, deb).CombinedOutput()
		require.NoError(t, err, string(out))
		data, err := os.ReadFile(deb)
		require.NoError(t, err)
		fmt.Fprintf(&index, "%sFilename: ./%s.deb\nSize: %d\nSHA256: %x\n\n", control, name, len(data), sha256.Sum256(data))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "Packages"), []byte(index.String()), 0o644))
	sources := filepath.Join(dir, "sources.list")
	require.NoError(t, os.WriteFile(sources, []byte("deb [trusted=yes] copy:"+dir+" ./\n"), 0o644))
	config = filepath.Join(dir, "apt.conf")
	require.NoError(t, os.WriteFile(config, []byte(fmt.Sprintf(
		"Dir::Etc::sourcelist %q;\nDir::Etc::sourceparts \"-\";\nDir::State::lists \"%s/lists\";\nDir::Cache \"%[2]s/cache\";\n", sources, dir)), 0o644))
	return config
}

// A machine without runc and a static busybox gets both beside the tools, also where apt has no lists.
func TestDemoUnpacksWhatIsMissing(t *testing.T) {
	programs, base, temporary := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if e.Name() != "runc" && e.Name() != "busybox" {
				_ = os.Symlink(filepath.Join(dir, e.Name()), filepath.Join(programs, e.Name())) // the first has it
			}
		}
	}
	setUp := func(argument, config string) (string, error) {
		cmd := exec.Command("../setup.sh", argument)
		cmd.Env = append(os.Environ(), "PATH="+programs, "GPUSLICE_TOOLS="+base, "APT_CONFIG="+config, "TMPDIR="+temporary)
		out, err := cmd.CombinedOutput()
		left, _ := os.ReadDir(temporary)
		require.Empty(t, left, "it removes what it downloaded")
		return string(out), err
	}
	out, err := setUp("--where", "/dev/null")
	require.NoError(t, err, out)
	tools := strings.TrimSpace(out)
	require.NoError(t, os.MkdirAll(tools, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(tools, ".complete"), nil, 0o644)) // nothing is built

	config := archive(t)
	empty := filepath.Join(filepath.Dir(config), "empty.conf")
	require.NoError(t, os.WriteFile(empty, []byte("Dir::Etc::sourcelist \"/dev/null\";\nDir::Etc::sourceparts \"-\";\nDir::State::lists \""+t.TempDir()+"\";\n"), 0o644))
	out, err = setUp("--demo", empty)
	require.Error(t, err, out)
	require.Contains(t, out, "package runc")

	out, err = setUp("--demo", config)
	require.NoError(t, err, out)
	for name, argument := range map[string]string{"runc": "--version", "busybox": "true"} {
		out, err := exec.Command(filepath.Join(tools, name), argument).CombinedOutput()
		require.NoError(t, err, "%s: %s", name, out)
	}
	entries, err := os.ReadDir(tools)
	require.NoError(t, err)
	require.Len(t, entries, 3)
	out, err = setUp("--demo", empty)
	require.NoError(t, err, out)
	require.Empty(t, out, "it has both")
}

// programs are this machine's, without some, and with scripts of the test in front.
func programs(t *testing.T, without []string, scripts map[string]string) (path string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range scripts {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755))
	}
	for _, from := range filepath.SplitList(os.Getenv("PATH")) {
		entries, _ := os.ReadDir(from)
		for _, e := range entries {
			if !slices.Contains(without, e.Name()) {
				_ = os.Symlink(filepath.Join(from, e.Name()), filepath.Join(dir, e.Name())) // the first has it
			}
		}
	}
	return dir
}

// with runs the script with these programs only.
func with(path, argument string) (string, error) {
	cmd := exec.Command("../setup.sh", argument)
	cmd.Env = append(os.Environ(), "PATH="+path)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

var notDebian = []string{"apt-get", "apt", "dpkg", "dpkg-query"}

// On Fedora and RHEL dnf installs, under the names of that distribution, and is never permitted to remove.
func TestDnf(t *testing.T) {
	calls := filepath.Join(t.TempDir(), "calls")
	path := programs(t, notDebian, map[string]string{
		"rpm": `[ "$2" != ShellCheck ] && [ "$2" != glibc-devel ]`,
		"dnf": "echo \"$@\" >>" + calls + "; exit 1",
	})
	out, err := with(path, "--check")
	require.Error(t, err)
	require.Contains(t, out, "installing packages, as root, without removing any: glibc-devel ShellCheck")
	require.Contains(t, out, "nothing was installed or removed")
	data, err := os.ReadFile(calls)
	require.NoError(t, err)
	require.Equal(t, "install -y -q --setopt=install_weak_deps=False --setopt=obsoletes=False glibc-devel ShellCheck\n", string(data))

	cmd := exec.Command("setpriv", "--reuid=65534", "--clear-groups", "../setup.sh", "--check")
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o755))
	cmd.Env = append(os.Environ(), "PATH="+path)
	text, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(text), "or: dnf install --setopt=install_weak_deps=False --setopt=obsoletes=False glibc-devel ShellCheck\n")
	again, err := os.ReadFile(calls)
	require.NoError(t, err)
	require.Equal(t, data, again, "dnf is not called")
}

// Without a package manager that is known, the packages are named.
func TestNoPackageManager(t *testing.T) {
	out, err := with(programs(t, append(notDebian, "rpm", "dnf"), nil), "--check")
	require.Error(t, err)
	require.Equal(t, "setup: there is neither apt nor dnf: install what these packages of Debian have: gcc libc6-dev make shellcheck cppcheck\n", out)
}

// Missing compilers are named in one line, before anything is built.
func TestMissingCompilers(t *testing.T) {
	for _, c := range []struct {
		without []string
		scripts map[string]string
		want    string
	}{
		{[]string{"go"}, nil, "setup: missing: go (Go 1.26 from go.dev; gcc and make with: apt-get install gcc libc6-dev make, or dnf install gcc glibc-devel make)\n"},
		{[]string{"go", "gcc", "make"}, nil, "setup: missing: go gcc make (Go 1.26 from go.dev; "},
		{nil, map[string]string{"go": "echo go1.19.8"}, "setup: missing: Go 1.26 from go.dev (this machine has go1.19.8)\n"},
	} {
		for _, argument := range []string{"--demo", "--check"} {
			out, err := with(programs(t, c.without, c.scripts), argument)
			require.Error(t, err)
			require.True(t, strings.HasPrefix(out, c.want), "%s: %s", argument, out)
			require.Equal(t, 1, strings.Count(out, "\n"), out)
		}
	}
}

// harmless is a set-up of everything on a simulated machine: it removes no package, and stops and disables no service that is there.
func harmless(t *testing.T, status string, services ...string) string {
	t.Helper()
	calls := filepath.Join(t.TempDir(), "systemctl")
	var there strings.Builder
	for _, s := range services {
		fmt.Fprintf(&there, "[ \"$2\" = %s ] && exit 0\n", s)
	}
	path := programs(t, nil, map[string]string{"systemctl": "echo \"$@\" >>" + calls + "\n[ \"$1\" = cat ] || exit 0\n" + there.String() + "exit 1\n"})
	cmd := exec.Command("../setup.sh", "--install")
	cmd.Env = append(os.Environ(), "PATH="+path)
	t.Setenv("PATH", path)
	out, _, _ := run(t, status, cmd)
	require.NotContains(t, out, "Remv ")
	data, _ := os.ReadFile(calls)
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		require.True(t, words[0] == "cat" || words[0] == "--quiet" && words[1] == "disable", line)
		for _, s := range services {
			require.False(t, words[0] != "cat" && slices.Contains(words, s), "%s is there: %s", s, line)
		}
	}
	return out
}

// NVIDIA's repository beside Docker's: its toolkit and the daemon stay.
func TestInstallKeepsNvidiasToolkit(t *testing.T) {
	status := database(t, []string{"docker.io", "containerd", "runc", "podman", "shellcheck"},
		installed("docker-ce", "Depends: containerd.io", "Conflicts: docker.io", "Replaces: docker.io"),
		installed("containerd.io", "Conflicts: containerd, runc", "Replaces: containerd, runc", "Provides: containerd, runc"),
		installed("libnvidia-container1"), installed("libnvidia-container-tools", "Depends: libnvidia-container1"),
		installed("nvidia-container-toolkit-base"), installed("nvidia-container-toolkit", "Depends: nvidia-container-toolkit-base, libnvidia-container-tools"))
	harmless(t, status, "docker.service", "docker.socket", "containerd.service")
}

// An image with little more than apt: what is installed removes nothing.
func TestInstallOnAMinimalImage(t *testing.T) {
	data, err := os.ReadFile("/var/lib/dpkg/status")
	require.NoError(t, err)
	var without []string
	for _, one := range strings.Split(string(data), "\n\n") {
		if !strings.Contains(one, "Essential: yes") && !strings.Contains(one, "Priority: required") {
			without = append(without, strings.TrimPrefix(strings.SplitN(one, "\n", 2)[0], "Package: "))
		}
	}
	require.Greater(t, len(without), 50)
	out := harmless(t, database(t, without))
	require.Contains(t, out, "without removing any: gcc libc6-dev make")
}

// inNamespace has a directory of the test in place of /usr/sbin, in a mount namespace of its own. apt-get writes "installs" there when
// it is called to install, and goes on until there is a file "end".
func inNamespace(t *testing.T, sbin string) (cmd *exec.Cmd, output func() string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "apt-get"), []byte("#!/bin/sh\n[ \"$1\" = install ] || exit 0\ncd "+sbin+`
cp policy-rc.d asked 2>/dev/null
touch installs
until [ -e end ]; do sleep 0.01; done
`), 0o755))
	// A shell can't handle signals that are ignored from the start, as below nohup.
	cmd = exec.Command("env", "--default-signal=HUP,INT,TERM", "/bin/bash", "-euc", `mount --bind "$0" /usr/sbin; exec ../setup.sh --check`, sbin)
	cmd.Env = append(os.Environ(), "PATH="+dir+":/usr/bin:/bin", "DPKG_ADMINDIR="+database(t, []string{"shellcheck"}))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Unshareflags: syscall.CLONE_NEWNS}
	file, err := os.Create(filepath.Join(dir, "output")) // a pipe would end with the last process
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = file.Close()
		if cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what a failed test has left
		}
	})
	cmd.Stdout, cmd.Stderr = file, file
	return cmd, func() string {
		text, err := os.ReadFile(file.Name())
		require.NoError(t, err)
		return string(text)
	}
}

func eventually(t *testing.T, condition func() bool, message string) {
	t.Helper()
	require.Eventually(t, condition, time.Minute, 10*time.Millisecond, message)
}

func exists(path ...string) func() bool {
	return func() bool { _, err := os.Stat(filepath.Join(path...)); return err == nil }
}

// A set-up that is interrupted leaves no rule that forbids services, and keeps it as long as apt runs.
func TestInterruptedInstallLeavesNoRule(t *testing.T) {
	for name, c := range map[string]struct {
		signal syscall.Signal
		group  bool
	}{
		"Ctrl-C":             {syscall.SIGINT, true},
		"the terminal ends":  {syscall.SIGHUP, true},
		"SIGTERM for all":    {syscall.SIGTERM, true},
		"SIGTERM for one":    {syscall.SIGTERM, false},
		"SIGKILL for one":    {syscall.SIGKILL, false},
		"nothing interrupts": {0, false},
	} {
		t.Run(name, func(t *testing.T) {
			sbin := t.TempDir()
			cmd, output := inNamespace(t, sbin)
			policy := filepath.Join(sbin, "policy-rc.d")
			require.NoError(t, cmd.Start())
			eventually(t, exists(sbin, "installs"), "apt-get runs")
			require.Equal(t, 101, status(t, exec.Command(policy)))
			if pid := cmd.Process.Pid; c.group {
				require.NoError(t, syscall.Kill(-pid, c.signal))
			} else {
				require.NoError(t, syscall.Kill(pid, c.signal))
				if c.signal != 0 {
					_ = cmd.Wait()
				}
				require.FileExists(t, policy, "apt-get runs on")
				require.NoError(t, os.WriteFile(filepath.Join(sbin, "end"), nil, 0o644))
			}
			eventually(t, func() bool { return !exists(policy)() }, "the rule is removed")
			_ = cmd.Wait()
			require.NoFileExists(t, policy)
			require.NotContains(t, output(), "conflict")
		})
	}
}

func status(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	_ = cmd.Run()
	require.NotNil(t, cmd.ProcessState)
	return cmd.ProcessState.ExitCode()
}

// The rule that a killed set-up left is removed. The machine's own rule stays, and that of another set-up.
func TestRulesOfOthersStay(t *testing.T) {
	sbin := t.TempDir()
	first, _ := inNamespace(t, sbin)
	require.NoError(t, first.Start())
	eventually(t, exists(sbin, "installs"), "apt-get runs")
	policy, end := filepath.Join(sbin, "policy-rc.d"), filepath.Join(sbin, "end")
	left, err := os.ReadFile(policy)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(sbin, "apt-get"), []byte("#!/bin/sh\n[ \"$1\" != install ]\n"), 0o755))
	second, output := inNamespace(t, sbin)
	second.Env = append(second.Env, "PATH="+sbin+":/usr/bin:/bin") // apt-get is locked by the first
	require.Error(t, second.Run())
	require.Contains(t, output(), "nothing was installed or removed")
	require.FileExists(t, policy, "the first goes on")
	require.NoError(t, syscall.Kill(-first.Process.Pid, syscall.SIGKILL))
	_ = first.Wait()
	require.NoError(t, os.WriteFile(end, nil, 0o644))

	for text, stays := range map[string]bool{string(left): false, "#!/bin/sh\nexit 101\n": true} {
		require.NoError(t, os.WriteFile(policy, []byte(text), 0o755))
		cmd, output := inNamespace(t, sbin)
		_ = cmd.Run() // shellcheck is missing in dpkg's database
		asked, err := os.ReadFile(filepath.Join(sbin, "asked"))
		require.NoError(t, err, output())
		require.Equal(t, text, string(asked))
		require.Equal(t, stays, exists(policy)(), text)
		require.NoError(t, os.Remove(filepath.Join(sbin, "asked")))
	}
}
