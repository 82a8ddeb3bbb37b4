package kube

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"path/filepath"

	"github.com/gpuslice/gpuslice/test/harness"
)

// OnNode runs one of our programs on the cluster's machine, as its administrator does. A non-zero exit status is not an error.
func (c *Cluster) OnNode(ctx context.Context, program string, args ...string) (stdout, stderr string, exitCode int, err error) {
	path, err := harness.Artefact("bin", program)
	if err != nil {
		return "", "", 0, err
	}
	var command []string
	if c.namespaces != nil {
		command = c.namespaces.enter()
	}
	command = append(append(command, path), args...)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		err = nil
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode(), err
}

// RuntimeSocket and RuntimeConfig are containerd's, on the cluster's machine.
func (c *Cluster) RuntimeSocket() string { return filepath.Join(c.Dir, "c", "c.sock") }
func (c *Cluster) RuntimeConfig() string { return filepath.Join(c.Dir, "c", "config.toml") }
