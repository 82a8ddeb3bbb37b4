// Command runner runs a list of commands in a guest of test/hosts, one after another, and reports what each wrote and how
// it ended, as lines of JSON, to the machine's virtio port with that name: runner STEPS PORT. It uses only the standard library.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Step is a command.
type Step struct {
	Name    string
	Dir     string
	Command []string
	Env     []string
	// Patience is how long it may take.
	Patience time.Duration
}

// Event is a line of the results: what a step wrote, or its end.
type Event struct {
	Step   string        `json:",omitempty"`
	Output string        `json:",omitempty"`
	Ended  bool          `json:",omitempty"`
	Error  string        `json:",omitempty"` // of an ended step
	Took   time.Duration `json:",omitempty"`
	// Of the first line: the machine.
	Kernel  string `json:",omitempty"`
	Modules string `json:",omitempty"` // for security
	Uptime  string `json:",omitempty"` // in seconds
	Cgroup  int    `json:",omitempty"`
}

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "runner:", err)
		os.Exit(1)
	}
}

func run(file, port string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var steps []Step
	if err := json.Unmarshal(data, &steps); err != nil {
		return err
	}
	device, err := find(port)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer out.Close()
	to := json.NewEncoder(out)
	errs := []error{to.Encode(machine())}
	for _, s := range steps {
		errs = append(errs, s.run(to))
	}
	return errors.Join(errs...)
}

// find is the device of a port. No rule of udev has to run before.
func find(port string) (string, error) {
	files, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return "", err
	}
	for _, file := range files {
		if name, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(name)) == port {
			return filepath.Join("/dev", filepath.Base(filepath.Dir(file))), nil
		}
	}
	return "", fmt.Errorf("no virtio port is named %s", port)
}

// machine describes the guest.
func machine() Event {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	uptime, _ := os.ReadFile("/proc/uptime")
	modules, _ := os.ReadFile("/sys/kernel/security/lsm")
	e := Event{Kernel: strings.TrimSpace(string(kernel)), Modules: strings.TrimSpace(string(modules)), Cgroup: 2}
	e.Uptime, _, _ = strings.Cut(string(uptime), ".")
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		e.Cgroup = 1
	}
	return e
}

func (s Step) run(to *json.Encoder) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.Patience)
	defer cancel()
	started := time.Now()
	cmd := exec.CommandContext(ctx, s.Command[0], s.Command[1:]...)
	cmd.Dir, cmd.Env = s.Dir, append(os.Environ(), s.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGQUIT) } // Go programs show where they are
	cmd.WaitDelay = 20 * time.Second
	reader, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	done := make(chan error, 1)
	go func() {
		var errs []error
		for lines := bufio.NewReader(reader); ; {
			line, err := lines.ReadString('\n')
			if line != "" {
				errs = append(errs, to.Encode(Event{Step: s.Name, Output: line}))
			}
			if err != nil {
				done <- errors.Join(errs...)
				return
			}
		}
	}()
	err := cmd.Run()
	end := Event{Step: s.Name, Ended: true, Took: time.Since(started)}
	switch {
	case ctx.Err() != nil:
		end.Error = fmt.Sprintf("not done within %v", s.Patience)
	case err != nil:
		end.Error = err.Error()
	}
	return errors.Join(writer.Close(), <-done, to.Encode(end))
}
