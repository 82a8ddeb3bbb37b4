package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpuslice/gpuslice/ledger/orphans"
)

// Attach returns a node that another program has brought up and left, to be closed.
func Attach(dir string) (*Node, error) {
	simctl, err := Artefact("sim", "simctl")
	if err != nil {
		return nil, err
	}
	c := &Containerd{Dir: filepath.Join(dir, "c")}
	n := &Node{Machine: &Machine{Dir: dir, simctl: simctl}, Containerd: c, Dir: dir}
	name, err := os.ReadFile(c.runtimePath())
	if err != nil {
		return nil, fmt.Errorf("find out the node's container runtime: %w", err)
	}
	if err := c.use(string(name)); err != nil {
		return nil, err
	}
	var agentErr error
	c.process, err = attach(c.Dir, c.runtime.program, c.runtime.program)
	n.Agent, agentErr = attach(dir, "agent", "gpuslice-agent")
	return n, errors.Join(err, agentErr, c.dial())
}

// attach finds the daemon that has the directory in its command line. It is nil if the daemon has ended.
func attach(dir, name, program string) (*Process, error) {
	pids, err := Processes(func(is, args string) bool { return is == program && strings.Contains(args, dir+"/") })
	if err != nil {
		return nil, err
	}
	if len(pids) > 1 {
		return nil, fmt.Errorf("%d processes of %s use %s", len(pids), program, dir)
	}
	if len(pids) == 0 {
		return nil, nil
	}
	p := &Process{Name: name, LogPath: filepath.Join(dir, name+".log"), cmd: &exec.Cmd{}, done: make(chan struct{})}
	if p.cmd.Process, err = os.FindProcess(pids[0]); err != nil {
		return nil, err
	}
	proc := orphans.Procfs("/proc")
	process, err := proc.Identify(pids[0])
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	go func() { // it is no child, and its parent may not wait for it
		for proc.Lives(process) {
			time.Sleep(10 * time.Millisecond)
		}
		close(p.done)
	}()
	return p, nil
}
