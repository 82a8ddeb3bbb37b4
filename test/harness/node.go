package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// NodeName is the node of the tests' grants.
const NodeName = "node-1"

// Node is a machine with simulated GPUs: a containerd, and an agent that is connected to it.
type Node struct {
	*Containerd
	*Machine
	// Dir holds everything; it is short, and removed at Close.
	Dir string
	// Agent is the running agent, or nil.
	Agent *Process

	options NodeOptions
}

// NodeOptions are the differences between the tests' nodes.
type NodeOptions struct {
	// GPUs are the simulated GPUs' profiles; one H200 when empty.
	GPUs []string
	// NoGPUs makes a machine without GPUs and without a driver.
	NoGPUs bool
	// Containerd are containerd's options.
	Containerd ContainerdOptions
	// AgentArgs are further arguments of the agent.
	AgentArgs []string
	// MIG are the GPUs, by index, of which the agent has the MIG devices' capabilities in /proc.
	MIG []int
	// NoAgent leaves the agent to be started later.
	NoAgent bool
	// Enter, if it is set, is asked for Containerd.Enter when the machine is there.
	Enter func(*Machine) ([]string, error)
	// Progress is called at each step; it may be nil.
	Progress func(format string, args ...any)
}

// NewNode brings a node up. It has to be closed also after an error.
func NewNode(ctx context.Context, o NodeOptions) (*Node, error) {
	if len(o.GPUs) == 0 && !o.NoGPUs {
		o.GPUs = []string{"H200"}
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	o.Progress("simulated GPUs: %s", cmp.Or(strings.Join(o.GPUs, ", "), "none"))
	machine, err := NewMachine(ctx, o.GPUs...)
	if machine == nil {
		return nil, err
	}
	o.Containerd.Env = append(o.Containerd.Env, machine.RuntimeEnv()...)
	n := &Node{Machine: machine, Dir: machine.Dir, options: o}
	if err != nil {
		return n, err
	}
	return n, n.start(ctx)
}

func (n *Node) start(ctx context.Context) (err error) {
	if n.options.Enter != nil {
		if n.options.Containerd.Enter, err = n.options.Enter(n.Machine); err != nil {
			return err
		}
	}
	n.options.Progress("containerd with NRI")
	n.Containerd, err = NewContainerd(ctx, filepath.Join(n.Dir, "c"), n.options.Containerd)
	if err != nil {
		return err
	}
	n.options.Progress("container images")
	archive := filepath.Join(n.Dir, "images.tar")
	if err := WriteImages(archive); err != nil {
		return err
	}
	if err := n.Import(ctx, archive); err != nil {
		return err
	}
	if n.options.NoAgent {
		return nil
	}
	n.options.Progress("gpuslice-agent")
	return n.StartAgent(ctx)
}

// SetAgentArgs sets further arguments of agents that are started from now on.
func (n *Node) SetAgentArgs(args ...string) { n.options.AgentArgs = args }

// StartAgent starts the agent and waits until it is connected.
func (n *Node) StartAgent(ctx context.Context) error {
	if err := n.LaunchAgent(); err != nil {
		return err
	}
	if err := n.WaitConnected(ctx); err != nil {
		return fmt.Errorf("the agent does not guard the node: %w\n%s", err, n.Agent.LogTail(20))
	}
	return nil
}

// LaunchAgent starts the agent and doesn't wait for it.
func (n *Node) LaunchAgent() (err error) {
	n.Agent, err = n.agent("agent", n.StateDir(), n.HealthAddress())
	return err
}

// StartSecondAgent starts another agent beside the node's, with a state directory of its
// own, as a careless operator could. It is the caller's to stop.
func (n *Node) StartSecondAgent(ctx context.Context) (*Process, error) {
	// The log of an earlier agent would end the wait at once.
	if err := os.RemoveAll(filepath.Join(n.Dir, "agent2.log")); err != nil {
		return nil, err
	}
	p, err := n.agent("agent2", filepath.Join(n.Dir, "run2"), "")
	if err != nil {
		return nil, err
	}
	err = Until(ctx, StartPatience, func(context.Context) error {
		if !strings.Contains(p.LogTail(5), `"connected to the container runtime"`) {
			return errors.New("the second agent is not connected")
		}
		return nil
	})
	return p, err
}

// agent starts an agent process.
func (n *Node) agent(name, stateDir, healthAddress string) (*Process, error) {
	path, err := Artefact("bin", "gpuslice-agent")
	if err != nil {
		return nil, err
	}
	library, err := Artefact("lib", "libvgpu.so")
	if err != nil {
		return nil, err
	}
	nvml, err := Artefact("sim", "libnvidia-ml.so.1")
	if err != nil {
		return nil, err
	}
	args := append([]string{
		"--node-name=" + NodeName,
		"--state-dir=" + stateDir,
		"--library-dir=" + filepath.Join(n.Dir, "lib"),
		"--library=" + library,
		"--nri-socket=" + n.NRISocket(),
		"--nvml-library=" + nvml,
		"--cdi-spec-dirs=" + filepath.Join(n.Dir, "cdi"),
		"--pod-resources-socket=" + filepath.Join(n.Dir, "kubelet.sock"),
		"--health-address=" + healthAddress,
		"--metrics-address=",   // a machine may have several such nodes
		"--device-plugin-dir=", // there is no kubelet
	}, n.options.AgentArgs...)
	command := append([]string{path}, args...)
	if len(n.options.MIG) > 0 {
		dir := filepath.Join(n.Dir, "proc")
		if err := WriteDriverFiles(dir, n.options.MIG...); err != nil {
			return nil, err
		}
		command = append(withDriverFiles(dir), command...)
	}
	return StartProcess(n.Dir, name, []string{"SIMGPU_STATE=" + n.SimState()}, command[0], command[1:]...)
}

// HealthAddress is a loopback address of this node's own, made of its directory's
// random name, so that two runs do not meet on one port: of 127.128.0.0/9, without the last of all, which is for broadcasts.
func (n *Node) HealthAddress() string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(n.Dir))
	sum := h.Sum32()
	return fmt.Sprintf("127.%d.%d.%d:9396", 128+sum>>16%127, sum>>8&0xff, sum&0xff)
}

// WaitConnected waits until /readyz reports that the agent is connected.
func (n *Node) WaitConnected(ctx context.Context) error {
	return Until(ctx, StartPatience, func(ctx context.Context) error {
		select {
		case <-n.Agent.Exited():
			return errors.New("the agent exited")
		default:
		}
		return n.Health(ctx, "/readyz")
	})
}

// Health asks the agent's /healthz or /readyz.
func (n *Node) Health(ctx context.Context, path string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.HealthAddress()+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, response.Status)
	}
	return nil
}

// Close takes everything down and reports what did not go.
func (n *Node) Close(ctx context.Context) error {
	var errs []error
	if n.Containerd != nil {
		errs = append(errs, n.Containerd.Close(ctx))
	}
	if n.Agent != nil {
		errs = append(errs, n.Agent.Stop(StopPatience))
	}
	return errors.Join(append(errs, n.Machine.Close())...)
}
