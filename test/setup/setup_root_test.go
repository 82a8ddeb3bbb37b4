//go:build root

package setup_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
		require.Contains(t, out, "installing Debian packages, as root, without removing any: shellcheck", argument)
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
		require.Contains(t, out, "these Debian packages are missing: shellcheck. Install them")
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
