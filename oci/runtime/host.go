package ociruntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/wish"
)

// NewInventory is the inventory of this machine. Where no agent says what the cards are,
// `gpuslice cards` is asked, the program beside this one: it knows NVML, which this one,
// that starts with every container, is not linked with.
func NewInventory(c wish.Config, self string) Inventory {
	return Inventory{
		NodePath:  c.NodePath(),
		CachePath: filepath.Join(c.StateDir, "cards.json"),
		Ask: func(ctx context.Context) ([]byte, error) {
			return askDriver(ctx, filepath.Join(filepath.Dir(self), "gpuslice"), c)
		},
	}
}

// askDriver runs `gpuslice cards`.
func askDriver(ctx context.Context, program string, c wish.Config) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, "cards",
		"--nvml-library="+c.NVMLLibrary,
		"--device-split-count="+strconv.Itoa(c.DeviceSplitCount),
		"--memory-scaling="+strconv.FormatFloat(c.MemoryScaling, 'g', -1, 64))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: install gpuslice beside gpuslice-runtime, or run gpuslice-agent", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s cards: %w: %s", program, err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// Library finds the limiter's library and installs it if it isn't yet: that which came
// with this program (lib/gpuslice or lib beside its bin, /usr/lib/gpuslice), or else the
// newest that was installed before.
func Library(dir, self string) (library, preload string, err error) {
	prefix := filepath.Dir(filepath.Dir(self))
	for _, source := range []string{
		filepath.Join(prefix, "lib/gpuslice/libvgpu.so"),
		filepath.Join(prefix, "lib/libvgpu.so"),
		"/usr/lib/gpuslice/libvgpu.so",
	} {
		if _, err := os.Stat(source); err == nil {
			return oci.InstallLibrary(source, dir)
		}
	}
	installed, err := filepath.Glob(filepath.Join(dir, "libvgpu-*.so"))
	if err != nil || len(installed) == 0 {
		return "", "", fmt.Errorf("find the limiter's library: none came with %s, and none is in %s: install gpuslice anew (gpuslice install)", self, dir)
	}
	newest := slices.MaxFunc(installed, func(a, b string) int { return modified(a).Compare(modified(b)) })
	return newest, filepath.Join(dir, "ld.so.preload"), nil
}

// modified is when a file was; the beginning of time if it isn't there.
func modified(path string) (when time.Time) {
	if info, err := os.Stat(path); err == nil {
		when = info.ModTime()
	}
	return when
}
