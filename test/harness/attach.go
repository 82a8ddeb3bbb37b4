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
)

// Attach returns a node that another program has brought up and left, to be closed.
func Attach(dir string) (*Node, error) {
	simctl, err := Artefact("sim", "simctl")
	if err != nil {
		return nil, err
	}
	n := &Node{Machine: &Machine{Dir: dir, simctl: simctl}, Containerd: &Containerd{Dir: filepath.Join(dir, "c")}, Dir: dir}
	var agentErr error
	n.Containerd.process, err = attach(n.Containerd.Dir, "containerd", "containerd")
	n.Agent, agentErr = attach(dir, "agent", "gpuslice-agent")
	return n, errors.Join(err, agentErr, n.Containerd.dial())
}

// attach finds the daemon that has the directory in its command line. It is nil if the daemon has ended.
func attach(dir, name, program string) (*Process, error) {
	pids, err := Processes(func(is, args string) bool { return is == program && strings.Contains(args, dir+"/") })
	if err != nil || len(pids) > 1 {
		return nil, errors.Join(err, fmt.Errorf("%d processes of %s use %s", len(pids), program, dir))
	}
	p := &Process{Name: name, LogPath: filepath.Join(dir, name+".log"), cmd: &exec.Cmd{}, done: make(chan struct{})}
	if len(pids) == 0 {
		return nil, nil
	}
	if p.cmd.Process, err = os.FindProcess(pids[0]); err != nil {
		return nil, err
	}
	go func() { // it is no child
		for syscall.Kill(pids[0], 0) == nil {
			time.Sleep(10 * time.Millisecond)
		}
		close(p.done)
	}()
	return p, nil
}
