package ociruntime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// recursionEnv detects a low-level runtime that calls this program.
const recursionEnv = "GPUSLICE_RUNTIME_CALLED"

// searchDirs follow PATH, which can lack the sbin directories.
var searchDirs = []string{"/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin"}

// findLowLevel returns the first candidate (a name or an absolute path) that exists, except self.
func findLowLevel(candidates []string, path, self string) (string, error) {
	own, err := os.Stat(self)
	if err != nil {
		return "", fmt.Errorf("find the low-level runtime: stat this program: %w", err)
	}
	dirs := []string{}
	for _, dir := range append(filepath.SplitList(path), searchDirs...) {
		if filepath.IsAbs(dir) && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	foundSelf := false
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
				foundSelf = true
				continue
			}
			return candidate, nil
		}
	}
	err = fmt.Errorf("find the low-level runtime: none of %s is in PATH or %s: install runc, or set runtimes in the config",
		strings.Join(candidates, ", "), strings.Join(searchDirs, ", "))
	if foundSelf {
		err = fmt.Errorf("%w; gpuslice-runtime was found under one of these names, but it needs another runtime", err)
	}
	return "", err
}

var errRecursion = errors.New("the low-level runtime has called gpuslice-runtime: set runtimes in the config to runc or crun, and remove gpuslice-runtime from the config of nvidia-container-runtime")

// withRecursionEnv fails if the low-level runtime has called this program.
func withRecursionEnv(env []string) ([]string, error) {
	if slices.Contains(env, recursionEnv+"=1") {
		return nil, errRecursion
	}
	return append(slices.Clone(env), recursionEnv+"=1"), nil
}

// isNvidia includes nvidia-container-runtime.cdi and .legacy.
func isNvidia(path string) bool {
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	return name == nvidiaRuntime
}

const nvidiaRuntime = "nvidia-container-runtime"

// nvidiaFor returns NVIDIA's runtime if it can replace a low-level runtime: only runc, which it calls
// by default.
func (r *Runtime) nvidiaFor(lowLevel string) string {
	if filepath.Base(lowLevel) != "runc" {
		return ""
	}
	found, _ := findLowLevel([]string{r.Config.NvidiaRuntime}, pathOf(r.Env), r.Self)
	return found // "" after an error
}
