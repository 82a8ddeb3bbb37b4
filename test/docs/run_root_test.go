//go:build root

package docs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/test/docs/pages"
	"github.com/gpuslice/gpuslice/test/harness"
)

// patience bounds a page.
const patience = 5 * time.Minute

// The commands of the quick starts print what the quick starts show.
func TestQuickStarts(t *testing.T) {
	texts := documents(t)
	for place, shown := range runHere {
		t.Run(place, func(t *testing.T) {
			page, section, _ := strings.Cut(place, "#")
			all := pages.Commands(page, texts[page])
			if section != "" {
				all = slices.DeleteFunc(all, func(c pages.Command) bool { return c.Section != section })
			}
			require.NotEmpty(t, all)
			out := onAMachine(t, all)
			for _, text := range shown {
				assert.Contains(t, out, text)
			}
		})
	}
}

// onAMachine runs commands on a machine of their own. Each has to end as it should.
func onAMachine(t *testing.T, all []pages.Command) string {
	require.Zero(t, os.Geteuid(), "containers are made as root: run this as root")
	repository, err := harness.Repository()
	require.NoError(t, err)
	build, err := harness.Artefact()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "gsdocs")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o711))
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=711")) // no layer of an overlay can be on another one
	t.Cleanup(func() {
		require.NoError(t, harness.Until(context.Background(), time.Minute, func(context.Context) error { return removeCgroups(filepath.Base(dir)) }))
		require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))
		require.NoError(t, os.Remove(dir))
	})
	script := filepath.Join(dir, "page.sh")
	require.NoError(t, os.WriteFile(script, []byte(pageScript(t, repository, dir, all)), 0o644))

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private",
		"bash", "testdata/machine.sh", dir, build, script)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	text := string(out)
	for i, c := range all {
		_, after, found := strings.Cut(text, fmt.Sprintf("@@ %d\n", i))
		require.True(t, found, "%s:%d: %s: was not reached:\n%s", c.Page, c.Line, c.Text, out)
		said, after, found := strings.Cut(after, fmt.Sprintf("@@ %d ended with ", i))
		require.True(t, found, "%s", out)
		failed := !strings.HasPrefix(after, "0\n")
		assert.Equal(t, c.Refused, failed, "%s:%d: %s\n%s", c.Page, c.Line, c.Text, said)
	}
	return text
}

// pageScript starts what the commands need, and runs each in a shell of its own, which fails with any part of it.
func pageScript(t *testing.T, repository, dir string, all []pages.Command) string {
	image := filepath.Join(dir, "ubuntu.tar")
	require.NoError(t, harness.WriteRootTar(image))
	var script strings.Builder
	uses := func(program string) bool {
		for _, c := range all {
			if strings.HasPrefix(c.Text, program+" ") {
				return true
			}
		}
		return false
	}
	if uses("docker") {
		// It ends if its containerd takes longer than 15 s to start, as on a busy machine. The next one finds that running.
		fmt.Fprintf(&script, "for i in 1 2 3 4; do dockerd; done >%s/dockerd.log 2>&1 &\n", dir)
		fmt.Fprintf(&script, "for i in $(seq 600); do docker info >/dev/null 2>&1 && break; sleep 0.1; done\ndocker import %s ubuntu || { cat %s/dockerd.log; exit 1; }\n", image, dir)
	}
	if uses("podman") {
		fmt.Fprintf(&script, "podman import -q %s ubuntu\n", image)
	}
	for i, c := range all {
		// What they need is built: that is what the test was called by.
		quoted := "'" + strings.ReplaceAll(c.Text, "'", `'\''`) + "'"
		if c.Text == "make build" {
			quoted = "'make -n build >/dev/null'"
		}
		fmt.Fprintf(&script, "echo '@@ %d'; (cd %s && exec bash -eo pipefail -c %s) </dev/null 2>&1 && status=0 || status=$?; echo \"@@ %d ended with $status\"\n", i, repository, quoted, i)
	}
	return script.String()
}

// removeCgroups removes the control groups that dead containers have left.
func removeCgroups(name string) error {
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + name)
	if err != nil {
		return err
	}
	for _, group := range groups {
		var below []string
		err := filepath.WalkDir(group, func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				below = append(below, path)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for i := len(below) - 1; i >= 0; i-- {
			if err := os.Remove(below[i]); err != nil {
				return err
			}
		}
	}
	return nil
}
