package ociruntime

import (
	"bytes"
	"context"
	"encoding/json"
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

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/request"
)

// LoadConfig reads the operator's config. Where it can't be used, problem says why, and
// the config is the one of a machine without any: so that containers which are there can
// be stopped and removed.
func LoadConfig(path string) (c request.Config, problem error) {
	if c, problem = request.Load(path); problem != nil {
		c = request.DefaultConfig()
	}
	return c, problem
}

// NewInventory is the inventory of this machine. Where no agent says what the GPUs are,
// `gpuslice GPUs` is asked, the program beside this one: it knows NVML, which this one,
// that starts with every container, is not linked with.
func NewInventory(c request.Config, self string) Inventory {
	return Inventory{
		NodePath:  c.NodePath(),
		CachePath: filepath.Join(c.StateDir, "gpus.json"),
		Ask: func(ctx context.Context) ([]byte, error) {
			return askDriver(ctx, companion(self), c)
		},
	}
}

// companion is the path of gpuslice: beside this program, or as programs are found.
func companion(self string) string {
	beside := filepath.Join(filepath.Dir(self), "gpuslice")
	if _, err := os.Stat(beside); err != nil {
		if found, err := findLowLevel([]string{"gpuslice"}, os.Getenv("PATH"), self); err == nil {
			return found
		}
	}
	return beside
}

// askDriver runs `gpuslice GPUs`.
func askDriver(ctx context.Context, program string, c request.Config) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, "gpus",
		"--nvml-library="+c.NVMLLibrary,
		"--device-split-count="+strconv.Itoa(c.DeviceSplitCount),
		"--memory-scaling="+strconv.FormatFloat(c.MemoryScaling, 'g', -1, 64))
	// Killed when it is late; a child of its own that has its outputs isn't waited for.
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: install gpuslice beside gpuslice-runtime, or run gpuslice-agent", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s GPUs: %w: %s", program, err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// Limiter is where the limiter's files are on the host.
type Limiter struct {
	Library string
	// Preload is mounted as /etc/ld.so.preload.
	Preload string
	// Fronts are there in every mode but preload.
	Fronts oci.Fronts
}

// FindLimiter finds the limiter's files and installs them where they aren't yet: those
// that came with this program (lib/gpuslice or lib beside its bin, /usr/lib/gpuslice), or
// else the newest that were installed before.
func FindLimiter(c request.Config, self string) (Limiter, error) {
	fronts := c.LimiterMode != string(oci.LimiterPreload)
	prefix := filepath.Dir(filepath.Dir(self))
	for _, source := range []string{
		filepath.Join(prefix, "lib/gpuslice/libvgpu.so"),
		filepath.Join(prefix, "lib/libvgpu.so"),
		"/usr/lib/gpuslice/libvgpu.so",
	} {
		if _, err := os.Stat(source); err == nil {
			return knownLimiter(filepath.Join(c.StateDir, "limiter.json"), source, c.LibraryDir, fronts)
		}
	}
	l := Limiter{Library: newest(c.LibraryDir, "libvgpu"), Preload: filepath.Join(c.LibraryDir, "ld.so.preload")}
	missing := l.Library == ""
	if fronts {
		l.Fronts = oci.Fronts{CUDA: newest(c.LibraryDir, "libvgpu-cuda"), NVML: newest(c.LibraryDir, "libvgpu-nvml")}
		missing = missing || l.Fronts.CUDA == "" || l.Fronts.NVML == ""
	}
	if missing {
		return l, fmt.Errorf("find the limiter's libraries for the limiter mode %s: none came with %s, and %s lacks them: install gpuslice again (gpuslice install)", c.LimiterMode, self, c.LibraryDir)
	}
	return l, nil
}

// installation is what a file keeps of an earlier call, so that the libraries aren't read
// for each container: of what it was, and what came of it.
type installation struct {
	Of      []string `json:"of"`
	Limiter Limiter  `json:"limiter"`
}

// knownLimiter is installLimiter, or what came of it the last time if nothing has changed.
func knownLimiter(path, source, dir string, fronts bool) (Limiter, error) {
	of := []string{dir, strconv.FormatBool(fronts)}
	for _, name := range []string{"libvgpu.so", "libvgpu-cuda.so", "libvgpu-nvml.so"} {
		of = append(of, identity(filepath.Join(filepath.Dir(source), name)))
	}
	data, err := os.ReadFile(path)
	if err == nil {
		var last installation
		if json.Unmarshal(data, &last) == nil && slices.Equal(of, last.Of) && last.Limiter.isThere(fronts) {
			return last.Limiter, nil
		}
	}
	l, err := installLimiter(source, dir, fronts)
	if err != nil {
		return l, err
	}
	if data, err = json.Marshal(installation{of, l}); err == nil {
		_ = os.WriteFile(path, data, 0o600) // without it, or with a part of it, the next one installs again
	}
	return l, nil
}

// identity tells whether a file is another than before.
func identity(path string) string {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return path + ": " + err.Error()
	}
	return fmt.Sprint(path, st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim)
}

// isThere says whether the installed files are.
func (l Limiter) isThere(fronts bool) bool {
	files := []string{l.Library, l.Preload}
	if fronts {
		files = append(files, l.Fronts.CUDA, l.Fronts.NVML)
	}
	return !slices.ContainsFunc(files, func(path string) bool {
		info, err := os.Stat(path)
		return err != nil || !info.Mode().IsRegular() || info.Size() == 0
	})
}

// installLimiter installs the files that are beside source.
func installLimiter(source, dir string, fronts bool) (l Limiter, err error) {
	if l.Library, l.Preload, err = oci.InstallLibrary(source, dir); err == nil && fronts {
		l.Fronts, err = oci.InstallFronts(source, dir)
	}
	return l, err
}

// newest is the newest library of a name that is installed in a directory, empty if none is.
func newest(dir, name string) string {
	const content = "????????????????" // 16 digits of its SHA-256
	installed, err := filepath.Glob(filepath.Join(dir, name+"-"+content+".so"))
	if err != nil || len(installed) == 0 {
		return ""
	}
	return slices.MaxFunc(installed, func(a, b string) int { return modified(a).Compare(modified(b)) })
}

// modified is when a file was; the beginning of time if it isn't there.
func modified(path string) (when time.Time) {
	if info, err := os.Stat(path); err == nil {
		when = info.ModTime()
	}
	return when
}
