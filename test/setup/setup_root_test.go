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
	t.Helper()
	dir := t.TempDir()
	calling := filepath.Join(dir, "calls")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "apt-get"), []byte("#!/bin/sh\necho \"$*\" >>"+calling+
		"\n[ \"$1\" = update ] || exec /usr/bin/apt-get \"$@\"\n"), 0o755))
	config := filepath.Join(dir, "apt.conf")
	require.NoError(t, os.WriteFile(config, []byte("APT::Get::Simulate \"true\";\nDir::State::status \""+database+"/status\";\n"), 0o644))
	cmd := exec.Command("../setup.sh", argument)
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
	out, calls, err := setUp(t, database(t, []string{"ripgrep"}), "--install")
	require.NoError(t, err, out)
	require.Contains(t, out, "ripgrep")
	for _, call := range calls {
		if call != "update -q" {
			require.Contains(t, call, "--no-remove")
		}
	}
}

// Without --install the missing packages are named, and apt is not called.
func TestMissingPackagesAreOnlyNamed(t *testing.T) {
	for _, argument := range []string{"--check", "--helm", "--monitoring", "--kubernetes"} {
		out, calls, err := setUp(t, database(t, []string{"shellcheck"}), argument)
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
