package kube

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/test/harness"
)

// Shell is an administrator's, in the repository's directory and the cluster's network: with kubectl, its
// plugin, and helm. An installation by helm gets the values of a cluster with simulated GPUs.
func (c *Cluster) Shell() (func(ctx context.Context, script string) (output string, err error), error) {
	root, err := harness.Repository()
	if err != nil {
		return nil, err
	}
	bin, err := os.MkdirTemp(c.Dir, "bin")
	if err != nil {
		return nil, err
	}
	values, err := c.chartValues()
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
	plugin, err := harness.Artefact("bin", "kubectl-gpuslice")
	if err != nil {
		return nil, err
	}
	program, err := harness.Artefact("bin", "gpuslice")
	if err != nil {
		return nil, err
	}
	for name, target := range map[string]string{"kubectl": kubectl, "kubectl-gpuslice": plugin, "gpuslice": program} {
		if err := os.Symlink(target, filepath.Join(bin, name)); err != nil {
			return nil, err
		}
	}
	kubeconfig, err := c.Kubeconfig(Admin)
	if err != nil {
		return nil, err
	}
	// A port that is forwarded does not conflict with a listener of the machine.
	var command []string
	if c.namespaces != nil {
		command = c.namespaces.enterNetwork()
	}
	command = append(command, "bash", "-euo", "pipefail", "-c")
	env := append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+bin+":"+os.Getenv("PATH"), "HELM_CONFIG_HOME="+c.Dir+"/helm", "HELM_CACHE_HOME="+c.Dir+"/helm", "HELM_DATA_HOME="+c.Dir+"/helm")
	return func(ctx context.Context, script string) (string, error) {
		cmd := exec.CommandContext(ctx, command[0], append(command[1:len(command):len(command)], script)...)
		cmd.Dir, cmd.Env = root, env
		// With what it has started.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = 10 * time.Second
		out, err := cmd.CombinedOutput()
		return string(out), err
	}, nil
}

// Tool returns the path of a program of Kubernetes, or of helm.
func Tool(name string) (string, error) {
	option, err := programs(name)
	if err != nil {
		return "", err
	}
	root, err := harness.Repository()
	if err != nil {
		return "", err
	}
	where, err := exec.Command(filepath.Join(root, "test", "setup.sh"), option).Output()
	if err != nil {
		return "", fmt.Errorf("ask test/setup.sh for Kubernetes' programs: %w", err)
	}
	path := filepath.Join(strings.TrimSpace(string(where)), name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s is not built: run `test/setup.sh %s` first", name, strings.Replace(option, "where-", "", 1))
	}
	return path, nil
}
