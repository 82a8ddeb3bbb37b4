//go:build root

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/test/harness"
)

// killAgent kills the agent, and starts it again; at times without waiting for it.
func (s *soak) killAgent(ctx context.Context, r *rand.Rand) error {
	s.Agent.Kill()
	s.count("killed agent")
	if r.IntN(4) == 0 {
		return s.LaunchAgent()
	}
	return s.StartAgent(ctx)
}

// killContainerd ends containerd by either signal, and starts it again.
func (s *soak) killContainerd(ctx context.Context, r *rand.Rand) error {
	if s.counted("killed containerd") && r.IntN(8) > 0 {
		return nil // others need it to get anywhere
	}
	if r.IntN(2) == 0 {
		s.Containerd.Kill()
	} else if err := s.Containerd.Stop(); err != nil {
		s.t.Logf("%v", err) // it is killed then
	}
	s.count("killed containerd")
	if err := s.Containerd.Start(ctx); err != nil {
		return fmt.Errorf("start containerd again: %w", err)
	}
	return nil
}

// killDockerd does the same to docker's daemon.
func (s *soak) killDockerd(ctx context.Context, r *rand.Rand) error {
	if s.counted("killed dockerd") && (!s.counted("docker limited") || r.IntN(8) > 0) {
		return nil // a container of docker's must get its GPU between two kills
	}
	if r.IntN(2) == 0 {
		s.docker.Kill()
	} else if err := s.docker.Stop(); err != nil {
		s.t.Logf("%v", err)
	}
	s.count("killed dockerd")
	if err := s.docker.Start(ctx); err != nil {
		return fmt.Errorf("start dockerd again: %w", err)
	}
	return nil
}

// killRuntimes kills a runtime of docker's in the middle of whatever it does.
func (s *soak) killRuntimes(_ context.Context, r *rand.Rand) error {
	pids, err := s.docker.Runtimes()
	if err != nil || len(pids) == 0 || r.IntN(3) > 0 {
		return err
	}
	if err := syscall.Kill(pids[r.IntN(len(pids))], syscall.SIGKILL); err == nil {
		s.count("killed runtime")
	}
	return nil
}

// killPrograms kills a CUDA program of a container.
func (s *soak) killPrograms(_ context.Context, r *rand.Rand) error {
	pids, err := harness.Processes(func(program, _ string) bool { return program == "hold" || program == "alloc" })
	if err != nil || len(pids) == 0 {
		return err
	}
	pid := pids[r.IntN(len(pids))]
	if !s.ours(pid) {
		return nil // of another test on this machine
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err == nil {
		s.count("killed program")
	}
	return nil
}

// ours reports whether a process is of a container of this node: it has one of its usage files mounted.
func (s *soak) ours(pid int) bool {
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	return err == nil && strings.Contains(string(mounts), "/.gpuslice/") && s.inDir(string(mounts))
}

// inDir reports whether a list of mounts has the file system of one of the node's containers.
func (s *soak) inDir(mounts string) bool {
	dirs, err := s.StateDirs()
	if err != nil {
		return false
	}
	for _, id := range dirs {
		var st unix.Stat_t
		usage := limiter.UsagePath(filepath.Join(s.StateDir(), "containers", id))
		if unix.Stat(usage, &st) == nil && strings.Contains(mounts, fmt.Sprintf(" %d:%d ", unix.Major(st.Dev), unix.Minor(st.Dev))) {
			return true
		}
	}
	return false
}

// busyGroups are the control groups of docker's containers, which have the node's name, with a process in
// them. A runc that was killed during its work leaves an empty one, which no program removes.
func busyGroups(dir string) ([]string, error) {
	files, err := filepath.Glob("/sys/fs/cgroup/*/" + filepath.Base(dir) + "/*/cgroup.procs")
	var busy []string
	for _, file := range files {
		if processes, err := os.ReadFile(file); err == nil && len(processes) > 0 {
			busy = append(busy, filepath.Dir(file))
		}
	}
	return busy, err
}
