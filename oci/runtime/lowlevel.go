package ociruntime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// guardEnv is set for the low-level runtime, so that one that calls us back is found.
const guardEnv = "GPUSLICE_RUNTIME_CALLED"

// searchDirs are looked in after PATH, which daemons may have without the sbin directories.
var searchDirs = []string{"/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin"}

// findLowLevel returns the first of the candidates that is there: names, looked up in
// PATH and the usual directories, or absolute paths. self, this program, is never the answer.
func findLowLevel(candidates []string, path, self string) (string, error) {
	own, err := os.Stat(self)
	if err != nil {
		return "", fmt.Errorf("find the low-level runtime: look at this program: %w", err)
	}
	dirs := []string{} // each once: PATH has most of the usual ones
	for _, dir := range append(filepath.SplitList(path), searchDirs...) {
		if filepath.IsAbs(dir) && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	ourselves := false
	for _, name := range candidates {
		paths := []string{name}
		if !filepath.IsAbs(name) {
			if strings.ContainsRune(name, '/') {
				return "", fmt.Errorf("find the low-level runtime: %q is neither a name nor an absolute path", name)
			}
			paths = paths[:0]
			for _, dir := range dirs {
				paths = append(paths, filepath.Join(dir, name))
			}
		}
		for _, candidate := range paths {
			info, err := os.Stat(candidate)
			if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
				continue
			}
			if os.SameFile(info, own) {
				ourselves = true
				continue
			}
			return candidate, nil
		}
	}
	err = fmt.Errorf("find the low-level runtime: none of %s is in PATH or %s: install runc, or name another one (runtimes in the config)",
		strings.Join(candidates, ", "), strings.Join(searchDirs, ", "))
	if ourselves {
		err = fmt.Errorf("%w; what is there under one of these names is gpuslice-runtime itself, which needs another runtime below it", err)
	}
	return "", err
}

// errRecursion: the low-level runtime calls this one.
var errRecursion = errors.New("the low-level runtime has called gpuslice-runtime again: name one that makes containers by itself (runtimes in the config), and this one in no config of nvidia-container-runtime")

// guarded returns the environment for the low-level runtime, or an error where it has
// called us.
func guarded(env []string) ([]string, error) {
	if slices.Contains(env, guardEnv+"=1") {
		return nil, errRecursion
	}
	return append(slices.Clone(env), guardEnv+"=1"), nil
}

// isNvidia says whether a low-level runtime is NVIDIA's, which injects GPUs by
// NVIDIA_VISIBLE_DEVICES (also as nvidia-container-runtime.cdi and .legacy).
func isNvidia(path string) bool {
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	return name == nvidiaRuntime
}

// nvidiaRuntime is the name of NVIDIA's runtime.
const nvidiaRuntime = "nvidia-container-runtime"

// nvidiaFor returns NVIDIA's runtime, if it is installed and can replace a low-level one. It can
// replace only runc, which it calls itself (its config's default), so that runc finds the
// container again.
func (r *Runtime) nvidiaFor(lowLevel string) string {
	if filepath.Base(lowLevel) != "runc" {
		return ""
	}
	found, err := findLowLevel([]string{r.Config.NvidiaRuntime}, pathOf(r.Env), r.Self)
	if err != nil {
		return ""
	}
	return found
}
