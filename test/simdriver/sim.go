package simdriver

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/test/harness"
)

// Variant is how the C code is built.
type Variant string

// The variants, by the value of SAN of the Makefiles.
const (
	Plain     Variant = ""
	Sanitized Variant = "address,undefined"
	Threads   Variant = "thread"
)

// Root is the root of the repository.
func Root() string {
	root, err := harness.Repository()
	if err != nil {
		panic(err)
	}
	return root
}

// Build makes the driver and the workloads, if they are not up to date, and returns the directory that they are in.
func Build(v Variant) (string, error) {
	if err := harness.Make(string(v), "", "testdata/simdriver", "testdata/workloads"); err != nil {
		return "", err
	}
	return filepath.Join(Root(), "build", string(v)), nil
}

// Sim is a set of simulated GPUs.
type Sim struct {
	State string   // path of the state file
	Dir   string   // of the build: sim/ and workloads/ are in it
	Env   []string // added to the environment of every program
	tb    testing.TB
}

// New makes GPUs, each in the form of simctl's --gpu: PROFILE[:key=value,…].
func New(tb testing.TB, v Variant, gpus ...string) *Sim {
	tb.Helper()
	dir, err := Build(v)
	if err != nil {
		tb.Fatal(err)
	}
	s := &Sim{State: filepath.Join(tb.TempDir(), "state"), Dir: dir, tb: tb}
	args := []string{"init"}
	for _, gpu := range gpus {
		args = append(args, "--gpu", gpu)
	}
	s.Ctl(args...)
	return s
}

// Command is a program of the build, as "workloads/alloc", set up to use these GPUs.
func (s *Sim) Command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.Dir, program), args...)
	cmd.Env = append(os.Environ(), "SIMGPU_STATE="+s.State, "LD_LIBRARY_PATH="+filepath.Join(s.Dir, "sim"))
	if os.Getenv("ASAN_OPTIONS") == "" {
		cmd.Env = append(cmd.Env, "ASAN_OPTIONS=detect_leaks=0") // leak detection needs ptrace, which not all places have
	}
	cmd.Env = append(cmd.Env, s.Env...)
	return cmd
}

// Ctl runs simctl, which must succeed, and returns its output.
func (s *Sim) Ctl(args ...string) string {
	s.tb.Helper()
	cmd := s.Command("sim/simctl", args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		s.tb.Fatalf("simctl %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String()
}

// Values are the key=value lines that a workload printed.
type Values map[string]string

// Parse reads key=value lines and skips all others.
func Parse(text string) Values {
	values := Values{}
	for _, line := range strings.Split(text, "\n") {
		if key, value, ok := strings.Cut(line, "="); ok {
			values[key] = value
		}
	}
	return values
}

// Int is the value of a key as a number, -1 if it is none.
func (v Values) Int(key string) int64 {
	n, err := strconv.ParseInt(v[key], 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// Run runs a program to its end and returns what it printed and its exit status (-1: killed by a signal).
func (s *Sim) Run(program string, args ...string) (Values, int) {
	s.tb.Helper()
	cmd := s.Command(program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if cmd.ProcessState == nil {
		s.tb.Fatalf("start %s: %v", program, err)
	}
	if stderr.Len() > 0 {
		s.tb.Logf("%s: %s", program, stderr.String())
	}
	return Parse(stdout.String()), cmd.ProcessState.ExitCode()
}

// Process is a program that runs.
type Process struct {
	*exec.Cmd
	Values Values // what it printed up to ready=1
}

// Start starts a program and waits for its line ready=1. It is killed at the end of the test, if it still runs.
func (s *Sim) Start(program string, args ...string) *Process {
	s.tb.Helper()
	return s.StartCommand(s.Command(program, args...))
}

// StartCommand is Start for a command that was set up further.
func (s *Sim) StartCommand(cmd *exec.Cmd) *Process {
	s.tb.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		s.tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.tb.Fatalf("start %s: %v", cmd.Path, err)
	}
	s.tb.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	var text []byte
	buffer := make([]byte, 4096)
	for !bytes.Contains(text, []byte("ready=1\n")) {
		n, err := stdout.Read(buffer)
		text = append(text, buffer[:n]...)
		if err != nil {
			_ = cmd.Wait()
			s.tb.Fatalf("%s ended before it was ready: %s%s", cmd.Path, text, stderr.String())
		}
	}
	return &Process{Cmd: cmd, Values: Parse(string(text))}
}

// Kill ends it by SIGKILL and waits until it is gone.
func (p *Process) Kill() {
	_ = p.Process.Kill()
	_ = p.Wait()
}

// Status is `simctl status -o json`.
type Status struct {
	State         string   `json:"state"`
	DriverVersion string   `json:"driver_version"`
	CUDAVersion   int      `json:"cuda_version"`
	GPUs          []GPU    `json:"gpus"`
	Groups        []Group  `json:"groups"`
	Clients       []Client `json:"clients"`
	Fails         []Fail   `json:"fails"`
}

// GPU is one GPU of a Status.
type GPU struct {
	Index               int    `json:"index"`
	Minor               int    `json:"minor"`
	UUID                string `json:"uuid"`
	Name                string `json:"name"`
	Profile             string `json:"profile"`
	PCIBusID            string `json:"pci_bus_id"`
	MemoryTotalBytes    uint64 `json:"memory_total_bytes"`
	MemoryReservedBytes uint64 `json:"memory_reserved_bytes"`
	MemoryUsedBytes     uint64 `json:"memory_used_bytes"`
	MemoryContextBytes  uint64 `json:"memory_context_bytes"`
	MemoryDataBytes     uint64 `json:"memory_data_bytes"`
	MemoryPeakBytes     uint64 `json:"memory_peak_bytes"`
	ContextBytes        uint64 `json:"context_bytes"` // of one context
	Presence            string `json:"presence"`      // present, lost, removed
	BusyPercent         int    `json:"busy_percent"`
	BusyNanoseconds     uint64 `json:"busy_ns"`
	Launches            uint64 `json:"launches"`
	ClockNanoseconds    uint64 `json:"clock_ns"` // up to which busy_ns is computed; CLOCK_MONOTONIC; 0 before the first launch
	MIGEnabled          bool   `json:"mig_enabled"`
	MIG                 []MIG  `json:"mig"` // in order of GPU instance id, as NVML numbers them
}

// MIG is a MIG device of a GPU.
type MIG struct {
	Index              int    `json:"index"`
	UUID               string `json:"uuid"`
	Profile            string `json:"profile"`
	GPUInstance        int    `json:"gpu_instance"`
	ComputeInstance    int    `json:"compute_instance"`
	Start              int    `json:"start"` // memory slice
	Size               int    `json:"size"`
	SMCount            int    `json:"sm_count"`
	CapMinors          []int  `json:"cap_minors"` // of the nodes in /dev/nvidia-caps: GPU instance, compute instance
	MemoryTotalBytes   uint64 `json:"memory_total_bytes"`
	MemoryUsedBytes    uint64 `json:"memory_used_bytes"`
	MemoryContextBytes uint64 `json:"memory_context_bytes"`
	MemoryDataBytes    uint64 `json:"memory_data_bytes"`
	MemoryPeakBytes    uint64 `json:"memory_peak_bytes"`
	ClockNanoseconds   uint64 `json:"clock_ns"`
	BusyPercent        int    `json:"busy_percent"`
	BusyNanoseconds    uint64 `json:"busy_ns"`
	Launches           uint64 `json:"launches"`
}

// CapacityBytes is what processes can have of the GPU.
func (c GPU) CapacityBytes() uint64 { return c.MemoryTotalBytes - c.MemoryReservedBytes }

// Group is what the processes of one mount namespace (or one SIMGPU_GROUP) have.
type Group struct {
	ID      uint64     `json:"id"`
	Clients int        `json:"clients"`
	GPUs    []GroupGPU `json:"gpus"`
}

// GroupGPU is what a group has of one GPU.
type GroupGPU struct {
	Index            int    `json:"index"`
	ContextBytes     uint64 `json:"context_bytes"`
	DataBytes        uint64 `json:"data_bytes"`
	PeakContextBytes uint64 `json:"peak_context_bytes"`
	PeakDataBytes    uint64 `json:"peak_data_bytes"`
	PeakTotalBytes   uint64 `json:"peak_total_bytes"`
	BusyNanoseconds  uint64 `json:"busy_ns"` // of all its processes, also of those that ended
	Launches         uint64 `json:"launches"`
}

// Client is one process.
type Client struct {
	Slot         int         `json:"slot"`
	PID          int         `json:"pid"` // in its own namespace
	HostPID      int         `json:"host_pid"`
	PIDNamespace uint64      `json:"pid_namespace"`
	Group        uint64      `json:"group"`
	Live         bool        `json:"live"`
	GPUs         []ClientGPU `json:"gpus"`
}

// ClientGPU is what a process has of one GPU.
type ClientGPU struct {
	Index             int    `json:"index"`
	ContextBytes      uint64 `json:"context_bytes"`
	DataBytes         uint64 `json:"data_bytes"`
	QueuedNanoseconds uint64 `json:"queued_ns"` // of all kernels launched
	BusyNanoseconds   uint64 `json:"busy_ns"`
	Launches          uint64 `json:"launches"`
}

// Fail is an injected failure.
type Fail struct {
	Symbol string `json:"symbol"`
	Left   int    `json:"left"`
	Error  int    `json:"error"`
}

// Status reads the state of the GPUs. What dead processes held has been returned by then.
func (s *Sim) Status() Status {
	s.tb.Helper()
	var status Status
	if err := json.Unmarshal([]byte(s.Ctl("status", "-o", "json")), &status); err != nil {
		s.tb.Fatalf("simctl status: %v", err)
	}
	return status
}
