package native

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Request is what the hook, which can't load NVML, asks of a program that can.
type Request struct {
	Cgroup string  `json:"cgroup"`
	Limits []Limit `json:"limits"`
}

// Reply has the states that were read back, or an error.
type Reply struct {
	States []State `json:"states,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// maxMessage is more than a request for all GPUs has.
const maxMessage = 64 << 10

// Command is the command of the CLI that answers a request on its standard input.
const Command = "limit-memory"

// SocketName is the agent's socket in its state directory.
const SocketName = "limit-memory.sock"

// Answer applies what a request wants.
func Answer(ctx context.Context, d Driver, in io.Reader) Reply {
	var r Request
	err := json.NewDecoder(io.LimitReader(in, maxMessage)).Decode(&r)
	if err == nil && (!filepath.IsAbs(r.Cgroup) || len(r.Limits) == 0) {
		err = errors.New("it has no path or no limits")
	}
	if err != nil {
		return Reply{Error: fmt.Sprintf("read the request: %v", err)}
	}
	states, err := Apply(ctx, d, r.Cgroup, r.Limits)
	if err != nil {
		return Reply{Error: err.Error()}
	}
	return Reply{States: states}
}

// asker sends a request and returns the reply.
type asker func(context.Context, Request) (Reply, error)

// askAgent does without package net, which is slow to start.
func askAgent(socket string) asker {
	return func(ctx context.Context, r Request) (reply Reply, err error) {
		if reply, err = exchange(ctx, socket, r); err != nil {
			err = fmt.Errorf("gpuslice-agent, which sets the driver's memory limits, does not answer at %s: %w", socket, err)
		}
		return reply, err
	}
}

func exchange(ctx context.Context, socket string, r Request) (reply Reply, err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return reply, err
	}
	f := os.NewFile(uintptr(fd), socket)
	defer f.Close()
	if deadline, has := ctx.Deadline(); has {
		left := unix.NsecToTimeval(max(time.Until(deadline), time.Millisecond).Nanoseconds())
		for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
			if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &left); err != nil {
				return reply, err
			}
		}
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		return reply, err
	}
	if err := json.NewEncoder(f).Encode(r); err != nil {
		return reply, err
	}
	return reply, json.NewDecoder(io.LimitReader(f, maxMessage)).Decode(&reply)
}

func askProgram(program, library string) asker {
	return func(ctx context.Context, r Request) (reply Reply, err error) {
		in, err := json.Marshal(r)
		if err != nil {
			return reply, err
		}
		cmd := exec.CommandContext(ctx, program, Command, "--nvml-library="+library)
		cmd.Stdin, cmd.WaitDelay = bytes.NewReader(in), time.Second
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return reply, fmt.Errorf("%s %s: %w: %s", program, Command, err, strings.TrimSpace(stderr.String()))
		}
		return reply, json.Unmarshal(out, &reply)
	}
}
