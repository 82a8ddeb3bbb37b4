package kube

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gpuslice/gpuslice/test/harness"
)

// Tool returns the path of a program of Kubernetes, or of helm.
func Tool(name string) (string, error) {
	dir := "--where-kubernetes"
	if name == "helm" {
		dir = "--where-helm"
	}
	root, err := harness.Repository()
	if err != nil {
		return "", err
	}
	where, err := exec.Command(filepath.Join(root, "test", "setup.sh"), dir).Output()
	if err != nil {
		return "", fmt.Errorf("ask test/setup.sh for Kubernetes' programs: %w", err)
	}
	path := filepath.Join(strings.TrimSpace(string(where)), name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s is not built: run `test/setup.sh --kubernetes` first", name)
	}
	return path, nil
}
