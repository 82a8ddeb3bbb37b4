package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/internal/rawfile"
	"github.com/gpuslice/gpuslice/ledger"
)

// maxWait is less than daemons wait for a runtime.
const maxWait = 20 * time.Second

// maxState bounds what a hook reads on stdin.
const maxState = 16 << 20

// An option is "NAME=VALUE" in one argument.
const (
	optionState   = "--state-dir"
	optionProgram = "--program"
	optionLibrary = "--nvml-library"
)

// Setup is what the hook of a container calls.
type Setup struct {
	// Hook is gpuslice-runtime.
	Hook     string
	StateDir string
	// Program is the CLI, which sets the limits with Library; empty: the agent does.
	Program, Library string
}

// Edit returns the hook.
func (s Setup) Edit() *cdispec.Hook {
	args := []string{filepath.Base(s.Hook), Command, optionState + "=" + s.StateDir}
	if s.Program != "" {
		args = append(args, optionProgram+"="+s.Program, optionLibrary+"="+s.Library)
	}
	timeout := int(maxWait/time.Second) + 5
	return &cdispec.Hook{
		HookName: "createRuntime", Path: s.Hook, Args: args, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Timeout: &timeout,
	}
}

// HasHook returns whether a container was created with the hook. Only root can add hooks.
func HasHook(createRuntime []rspec.Hook) bool {
	return slices.ContainsFunc(createRuntime, func(h rspec.Hook) bool { return len(h.Args) > 1 && h.Args[1] == Command })
}

// Main is the createRuntime hook, with the container's state on stdin. The runtime has made the control group, and nothing of
// the image has run. Status 1 refuses the container, with the reason on stderr.
func Main(ctx context.Context, args []string, stdin io.Reader, stderr io.Writer) int {
	ctx, cancel := context.WithTimeoutCause(ctx, maxWait, fmt.Errorf("it took longer than %v", maxWait))
	defer cancel()
	if err := run(ctx, args, stdin); err != nil {
		fmt.Fprintf(stderr, "gpuslice: can't set the driver's memory limits of this container: %v\n", err)
		return 1
	}
	return 0
}

func run(ctx context.Context, args []string, stdin io.Reader) error {
	options := map[string]string{}
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		options[name] = value
	}
	h := hook{stateDir: options[optionState], proc: "/proc"}
	if !filepath.IsAbs(h.stateDir) {
		return fmt.Errorf("%s=DIR is missing", optionState)
	}
	h.ask = askAgent(filepath.Join(h.stateDir, SocketName))
	if program := options[optionProgram]; program != "" {
		h.ask = askProgram(program, options[optionLibrary])
	}
	var err error
	if h.root, err = Root(); err != nil {
		return err
	}
	return h.limit(ctx, stdin)
}

type hook struct {
	stateDir, proc, root string
	ask                  asker
}

func (h hook) limit(ctx context.Context, stdin io.Reader) error {
	var state rspec.State
	if err := json.NewDecoder(io.LimitReader(stdin, maxState)).Decode(&state); err != nil {
		return fmt.Errorf("read the container's state on stdin: %w", err)
	}
	if state.Pid <= 0 {
		return errors.New("its state has no process: is this a createRuntime hook?")
	}
	claim, limits, err := h.limits(ctx, state.ID)
	if err != nil {
		return err
	}
	if err := h.confined(state); err != nil {
		return err
	}
	group, err := groupOf(h.proc, h.root, state.Pid)
	if err == nil {
		err = own(group, state.Pid)
	}
	if err != nil {
		return err
	}
	reply, err := h.ask(ctx, Request{group, limits})
	switch {
	case err != nil:
		return err
	case reply.Error != "":
		return errors.New(reply.Error)
	}
	if err := Check(limits, reply.States); err != nil {
		return err
	}
	return Record{Cgroup: group}.write(ledger.DirOf(h.stateDir, claim))
}

// limits returns the container's claim and its limits. Several containers with one claim have a control group each, and would
// have the whole share each.
func (h hook) limits(ctx context.Context, id string) (claim string, limits []Limit, err error) {
	if err := ledger.ValidateContainerID(id); err != nil {
		return "", nil, err
	}
	now, err := ledger.Read(ctx, h.stateDir)
	if err != nil {
		return "", nil, err
	}
	for _, c := range now.Claims() {
		member := slices.ContainsFunc(c.Members, func(m ledger.Member) bool { return m.ContainerID == id })
		switch {
		case c.ContainerID != id && !member:
			continue
		case len(c.Members) > 1:
			return "", nil, errors.New("it has a ResourceClaim in common with other containers, and the driver's limits are for one: give each a ResourceClaim of its own")
		}
		limits, err = Limits(c.Shares)
		return c.ContainerID, limits, err
	}
	return "", nil, errors.New("it has no claim")
}

// confined refuses a container that could move its processes to another control group.
func (h hook) confined(state rspec.State) error {
	data, err := rawfile.Read(filepath.Join(state.Bundle, "config.json"))
	if err != nil {
		return fmt.Errorf("read the container's bundle: %w", err)
	}
	var spec rspec.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return fmt.Errorf("read the container's bundle %s: %w", state.Bundle, err)
	}
	if spec.Root == nil || spec.Process == nil {
		return errors.New("its config has no root directory or no process")
	}
	if c := spec.Process.Capabilities; c != nil && slices.Contains(slices.Concat(c.Bounding, c.Effective, c.Permitted), "CAP_SYS_ADMIN") {
		return errors.New("it has CAP_SYS_ADMIN, with which its processes could leave the group with the limit: remove the capability")
	}
	rootfs := spec.Root.Path
	if !filepath.IsAbs(rootfs) {
		rootfs = filepath.Join(state.Bundle, rootfs)
	}
	if real, err := filepath.EvalSymlinks(rootfs); err == nil {
		rootfs = real
	}
	mounts, err := os.Open(filepath.Join(h.proc, strconv.Itoa(state.Pid), "mountinfo"))
	if err != nil {
		return fmt.Errorf("read the container's mounts: %w", err)
	}
	defer mounts.Close()
	return unwritable(mounts, filepath.Clean(rootfs), spec.Mounts)
}

// Record is what the hook keeps in the claim's directory, which only root can reach.
type Record struct {
	Cgroup string `json:"cgroup"`
}

const recordName = "native.json"

func (r Record) write(dir string) error {
	data, err := json.Marshal(r)
	if err == nil {
		err = atomicfile.Write(filepath.Join(dir, recordName), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("record the control group with the limit: %w", err)
	}
	return nil
}

// ReadRecord returns what the hook recorded. A container that was not created yet, or has another enforcement, has none
// (fs.ErrNotExist).
func ReadRecord(dir string) (r Record, err error) {
	data, err := rawfile.Read(filepath.Join(dir, recordName))
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read the control group with the driver's memory limit: %w", err)
	}
	return r, nil
}
