package cdihook

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// image makes a container's root directory out of files: a name that ends in a slash is a
// directory, a content "->target" a link.
func image(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "rootfs")
	require.NoError(t, os.Mkdir(dir, 0o755))
	for name, content := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		target, link := strings.CutPrefix(content, "->")
		switch {
		case strings.HasSuffix(name, "/"):
			require.NoError(t, os.MkdirAll(path, 0o755))
		case link:
			require.NoError(t, os.Symlink(target, path))
		default:
			require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
		}
	}
	return dir
}

// state makes a bundle of a root directory, and the state that a runtime writes to a hook.
func state(t *testing.T, rootfs string) string {
	t.Helper()
	bundle := t.TempDir()
	config, err := json.Marshal(map[string]any{"ociVersion": "1.2.0", "root": map[string]any{"path": rootfs}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o600))
	data, err := json.Marshal(map[string]any{"ociVersion": "1.2.0", "id": "c1", "status": "creating", "bundle": bundle})
	require.NoError(t, err)
	return string(data)
}

// call runs a hook.
func call(stdin string, args ...string) (status int, stderr string) {
	var out, errs bytes.Buffer
	status = Main(args, strings.NewReader(stdin), &out, &errs)
	return status, out.String() + errs.String()
}

func TestNewerSpecsDoNoHarm(t *testing.T) {
	root := image(t, map[string]string{"lib/": ""})
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"no hook", nil, "CDI hook name is missing"},
		{"a hook of a newer toolkit", []string{"enable-cuda-compat", "--host-driver-version=999.1"}, "not supported"},
		{"a flag of a newer toolkit", []string{"create-symlinks", "--new-flag=x", "--link", "a.so.1::/lib/a.so"}, "unknown flags"},
	} {
		t.Run(test.name, func(t *testing.T) {
			status, stderr := call(state(t, root), test.args...)
			require.Zero(t, status, stderr)
			require.Contains(t, stderr, test.want)
		})
	}
	target, err := os.Readlink(filepath.Join(root, "lib/a.so"))
	require.NoError(t, err, "a flag that isn't known leaves the others in force")
	require.Equal(t, "a.so.1", target)
}

func TestBadState(t *testing.T) {
	noConfig := t.TempDir()
	for _, test := range []struct{ name, stdin, want string }{
		{"nothing", "", "EOF"},
		{"not JSON", "hello", "invalid character"},
		{"no bundle", `{"id":"c1"}`, "no absolute bundle path"},
		{"a bundle that is relative", `{"bundle":"here"}`, "no absolute bundle path"},
		{"a bundle without a configuration", `{"bundle":"` + noConfig + `"}`, "config.json"},
		{"the host's own root", state(t, "/"), "is the host's"},
		{"the host's own root, spelled otherwise", state(t, "/tmp/../"), "is the host's"},
		{"a root directory that is gone", state(t, filepath.Join(noConfig, "gone")), "no such file"},
		{"no root directory", state(t, ""), "has no root"},
	} {
		t.Run(test.name, func(t *testing.T) {
			status, stderr := call(test.stdin, "create-symlinks", "--link", "a::/b")
			require.Equal(t, 1, status)
			require.Contains(t, stderr, test.want)
		})
	}
}

func TestBadFlags(t *testing.T) {
	root := image(t, nil)
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"a link without a target", []string{"create-symlinks", "--link", "::/lib/a"}, "TARGET::LINK"},
		{"a link without a name", []string{"create-symlinks", "--link", "a::"}, "TARGET::LINK"},
		{"a link that is a directory", []string{"create-symlinks", "--link", "a::/lib/"}, "TARGET::LINK"},
		{"a link in three parts", []string{"create-symlinks", "--link", "a::b::c"}, "TARGET::LINK"},
		{"a link that is no link", []string{"create-symlinks", "--link", "a"}, "TARGET::LINK"},
		{"a flag without its value", []string{"create-symlinks", "--link"}, "has no value"},
		{"a mode that is no number", []string{"chmod", "--mode", "rwx", "--path", "/"}, "octal"},
		{"a mode of more than permissions", []string{"chmod", "--mode", "100755", "--path", "/"}, "octal"},
		{"no mode", []string{"chmod", "--path", "/"}, "octal"},
		{"a directory that is relative", []string{"update-ldcache", "--folder", "lib"}, "absolute"},
		{"a directory of two lines", []string{"update-ldcache", "--folder", "\"/lib\n/include\""}, "absolute"},
	} {
		t.Run(test.name, func(t *testing.T) {
			status, stderr := call(state(t, root), test.args...)
			require.Equal(t, 1, status)
			require.Contains(t, stderr, test.want)
		})
	}
}

func TestRootRelativeToTheBundle(t *testing.T) {
	bundle := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(bundle, "rootfs"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"root":{"path":"rootfs"}}`), 0o600))
	status, stderr := call(`{"bundle":"`+bundle+`"}`, "create-symlinks", "--link", "a.so.1::/lib/a.so")
	require.Zero(t, status, stderr)
	require.FileExists(t, bundle+"/config.json")
	target, err := os.Readlink(filepath.Join(bundle, "rootfs/lib/a.so"))
	require.NoError(t, err)
	require.Equal(t, "a.so.1", target)
}
