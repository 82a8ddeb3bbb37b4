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

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/request"
)

// LoadConfig reads the operator's config. With problem it returns the default config, which is enough
// to stop and remove containers.
func LoadConfig(path string) (c request.Config, problem error) {
	if c, problem = request.Load(path); problem != nil {
		c = request.DefaultConfig()
	}
	return c, problem
}

// NewInventory returns the inventory of this host. It queries the driver with `gpuslice gpus`.
func NewInventory(c request.Config, self string) Inventory {
	return Inventory{
		NodePath:  c.NodePath(),
		CachePath: filepath.Join(c.StateDir, api.NodeCacheName),
		Query: func(ctx context.Context) ([]byte, error) {
			return queryDriver(ctx, companion(self), c)
		},
	}
}

func companion(self string) string {
	beside := filepath.Join(filepath.Dir(self), "gpuslice")
	if _, err := os.Stat(beside); err != nil {
		if found, err := findLowLevel([]string{"gpuslice"}, os.Getenv("PATH"), self); err == nil {
			return found
		}
	}
	return beside
}

func queryDriver(ctx context.Context, program string, c request.Config) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, "gpus",
		"--nvml-library="+c.NVMLLibrary,
		"--device-split-count="+strconv.Itoa(c.DeviceSplitCount),
		"--memory-scaling="+strconv.FormatFloat(c.MemoryScaling, 'g', -1, 64))
	// Do not wait for a grandchild that has the outputs.
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: install gpuslice in the directory of gpuslice-runtime, or run gpuslice-agent", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s gpus: %w: %s", program, err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// Limiter are the limiter's files on the host.
type Limiter struct {
	Library string
	Preload string
	Fronts  oci.Stubs
}

// FindLimiter installs the limiter's files if necessary: those beside this program, else it returns
// the newest that are installed.
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
		l.Fronts = oci.Stubs{CUDA: newest(c.LibraryDir, "libvgpu-cuda"), NVML: newest(c.LibraryDir, "libvgpu-nvml")}
		missing = missing || l.Fronts.CUDA == "" || l.Fronts.NVML == ""
	}
	if missing {
		return l, fmt.Errorf("find the limiter's libraries for the limiter mode %s: they are neither beside %s nor in %s: install gpuslice again (gpuslice install)", c.LimiterMode, self, c.LibraryDir)
	}
	return l, nil
}

// installation caches the result of installLimiter for files with the identities Of.
type installation struct {
	Of      []string `json:"of"`
	Limiter Limiter  `json:"limiter"`
}

// knownLimiter is installLimiter with a cache, because reading the libraries is slow.
func knownLimiter(path, source, dir string, fronts bool) (Limiter, error) {
	of := []string{dir, strconv.FormatBool(fronts)}
	for _, name := range []string{"libvgpu.so", "libvgpu-cuda.so", "libvgpu-nvml.so"} {
		of = append(of, identity(filepath.Join(filepath.Dir(source), name)))
	}
	data, err := os.ReadFile(path)
	if err == nil {
		var last installation
		if json.Unmarshal(data, &last) == nil && slices.Equal(of, last.Of) && last.Limiter.exists(fronts) {
			return last.Limiter, nil
		}
	}
	l, err := installLimiter(source, dir, fronts)
	if err != nil {
		return l, err
	}
	if data, err = json.Marshal(installation{of, l}); err == nil {
		_ = atomicfile.Write(path, data, 0o600) // else the next call installs again
	}
	return l, nil
}

// identity returns a text that changes with the file.
func identity(path string) string {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return path + ": " + err.Error()
	}
	return fmt.Sprint(path, st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim)
}

func (l Limiter) exists(fronts bool) bool {
	files := []string{l.Library, l.Preload}
	if fronts {
		files = append(files, l.Fronts.CUDA, l.Fronts.NVML)
	}
	return !slices.ContainsFunc(files, func(path string) bool {
		info, err := os.Stat(path)
		return err != nil || !info.Mode().IsRegular() || info.Size() == 0
	})
}

func installLimiter(source, dir string, fronts bool) (l Limiter, err error) {
	if l.Library, l.Preload, err = oci.InstallLibrary(source, dir); err == nil && fronts {
		l.Fronts, err = oci.InstallStubs(source, dir)
	}
	return l, err
}

func newest(dir, name string) string {
	const content = "????????????????" // 16 digits of its SHA-256
	installed, err := filepath.Glob(filepath.Join(dir, name+"-"+content+".so"))
	if err != nil || len(installed) == 0 {
		return ""
	}
	return slices.MaxFunc(installed, func(a, b string) int { return modified(a).Compare(modified(b)) })
}

func modified(path string) (when time.Time) {
	if info, err := os.Stat(path); err == nil {
		when = info.ModTime()
	}
	return when
}
