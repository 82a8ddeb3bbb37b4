package kube

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gpuslice/gpuslice/test/harness"
)

// Shell is an administrator's, in the repository's folder: with kubectl, its plugin, and helm. What is installed there by
// helm is told of this cluster: that its cards are simulated, and which tag its image has.
func (c *Cluster) Shell(tag string) (func(ctx context.Context, script string) (output string, err error), error) {
	root, err := harness.Repository()
	if err != nil {
		return nil, err
	}
	bin := filepath.Join(c.Dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, err
	}
	values, err := c.chartValues(tag)
	if err != nil {
		return nil, err
	}
	helm, err := Tool("helm")
	if err != nil {
		return nil, err
	}
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = install ] || exec %[1]s \"$@\"\nexec %[1]s \"$@\" %[2]s\n", helm, strings.Join(values[1:], " "))
	if err := os.WriteFile(filepath.Join(bin, "helm"), []byte(script), 0o755); err != nil {
		return nil, err
	}
	kubectl, err := Tool("kubectl")
	if err != nil {
		return nil, err
	}
	plugin, err := harness.Artefact("bin", "gpuslice")
	if err != nil {
		return nil, err
	}
	for name, target := range map[string]string{"kubectl": kubectl, "kubectl-gpuslice": plugin, "gpuslice": plugin} {
		link := filepath.Join(bin, name)
		if err := os.Symlink(target, link); err != nil && !os.IsExist(err) {
			return nil, err
		}
	}
	kubeconfig, err := c.Kubeconfig(Admin)
	if err != nil {
		return nil, err
	}
	env := append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+bin+":"+os.Getenv("PATH"), "HELM_CONFIG_HOME="+c.Dir+"/helm", "HELM_CACHE_HOME="+c.Dir+"/helm", "HELM_DATA_HOME="+c.Dir+"/helm")
	return func(ctx context.Context, script string) (string, error) {
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
		cmd.Dir, cmd.Env = root, env
		out, err := cmd.CombinedOutput()
		return string(out), err
	}, nil
}
