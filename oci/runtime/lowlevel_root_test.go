//go:build root

package ociruntime

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Where no CDI spec has the GPUs, NVIDIA's runtime makes the container, if it is there and
// runc is what it calls; else the error has what to do.
func TestNvidiaRuntimeInRuncsPlace(t *testing.T) {
	for _, c := range []struct {
		description, lowLevel, injection string
		specs                            bool
		want                             string
		err                              string
	}{
		{"a spec has the GPUs", "runc", "auto", true, "runc", ""},
		{"no spec", "runc", "auto", false, "nvidia-container-runtime", ""},
		{"the operator wants it so", "runc", "envvar", true, "nvidia-container-runtime", ""},
		{"the operator doesn't", "runc", "cdi", false, "", "no CDI device nvidia.com/gpu=" + gpu0},
		{"it wouldn't call this one", "crun", "auto", false, "", "set nvidia-container-runtime first in runtimes of the config"},
	} {
		t.Run(c.description, func(t *testing.T) {
			b := newBench(t)
			bin := filepath.Join(b.dir, "bin")
			for _, name := range []string{"runc", "crun", "nvidia-container-runtime"} {
				write(t, filepath.Join(bin, name), "", 0o755)
			}
			b.Self = write(t, filepath.Join(b.dir, "self/gpuslice-runtime"), "", 0o755)
			b.Env = []string{"PATH=" + bin}
			b.Config.Runtimes, b.Config.DeviceInjection = []string{c.lowLevel}, c.injection
			if !c.specs {
				b.Config.CDISpecDirs = []string{filepath.Join(b.dir, "none")}
			}
			var ran, called string
			b.Exec = func(path string, argv, _ []string) error { ran, called = path, argv[0]; return errors.New("it ran") }
			output := new(bytes.Buffer)
			b.Stderr = output
			b.Main(context.Background(), []string{"create", "--bundle", b.bundle(t, "docker-20"), id})
			if c.err != "" {
				require.Contains(t, output.String(), c.err)
				require.Empty(t, ran)
				return
			}
			require.Equal(t, filepath.Join(bin, c.want), ran, output)
			require.Equal(t, ran, called)
		})
	}
}
