//go:build linux && cgo

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant/size"
	"github.com/gpuslice/gpuslice/oci/request"
	ociruntime "github.com/gpuslice/gpuslice/oci/runtime"
)

const runManual = `Runs a command on this host, without a container, with a share of a GPU.

The command has a mount namespace of its own, in which the limiter is loaded
into its programs as in a container. The share is reserved in the node's ledger
with those of the containers, and released when the command and all of its
processes have ended, also if this program is killed. "gpuslice status", "top"
and "resize" show and change it like a container's; its name is
USER.COMMAND.PID, or that of --name. Signals and the exit status are passed
through.

It limits CUDA programs that load the limiter and do not work against it.
Static programs, programs in a chroot, and OpenCL, Vulkan, OpenGL and OptiX
have the whole GPU: the command can open the machine's devices as any process
of its user can, and has the driver's libraries. A container with a share has
neither.

Run it as root: the ledger is root's. --user runs the command as another user,
without the caller's open files; environment and terminal are the caller's.

Exit status: the command's; 128 and the number of the signal that ended it; 125
gpuslice failed or refused the share; 126 the command could not be run; 127 it
was not found.`

type runOptions struct {
	config, memory, gpus, slice, name, user string
	cores                                   int
}

func runCommand() *cobra.Command {
	var o runOptions
	c := &cobra.Command{
		Use:   runName + " [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command on this host with a share of a GPU",
		Long:  runManual,
		Example: `  gpuslice run --memory 8GiB --cores 30 -- python3 train.py
  gpuslice run --memory 25% --user alice -- nvidia-smi
  gpuslice resize root.python3.4711 --memory 12GiB`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("state-dir") {
				return o.run(c, args, stateDir(c))
			}
			return o.run(c, args, "")
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.SetInterspersed(false) // what follows the command is its own
	f.StringVar(&o.memory, "memory", "", "Device memory of each GPU, a `SIZE` such as 8GiB, 8000MiB or 25%.")
	f.IntVar(&o.cores, "cores", 0, "Compute time of each GPU in `PERCENT`; 0: not limited, or the operator's default.")
	f.StringVar(&o.gpus, "gpus", "", "Number of `GPUS`, or indices or UUIDs, or all; default: 1, or the slice's.")
	f.StringVar(&o.slice, "slice", "", "Request the operator's slice `NAME` in place of the above.")
	f.StringVar(&o.user, "user", "", "Run the command as `USER`, a name or a number.")
	f.StringVar(&o.name, "name", "", "`NAME` of the share; default: USER.COMMAND.PID.")
	f.StringVar(&o.config, "config", api.RuntimeConfig, "Read the operator's limits from the config `FILE`.")
	return c
}

// exited is the exit status of "run"; err is nil if it is the command's.
func (o runOptions) run(c *cobra.Command, args []string, stateDir string) error {
	process, err := o.process(args, os.Environ())
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return exited{exitRefused, fmt.Errorf("GPU shares are reserved by root: %s, for example sudo gpuslice run --user %s …", asRoot, cmp.Or(os.Getenv("USER"), "USER"))}
	}
	config, problem := ociruntime.LoadConfig(o.config)
	config.StateDir = cmp.Or(stateDir, config.StateDir)
	config.AnnotationsOnly = false // the request is root's
	self, err := os.Executable()
	if err != nil {
		return exited{exitRefused, err}
	}
	r := &ociruntime.Runtime{
		Config: config, ConfigProblem: problem, Self: self, Env: os.Environ(), Stderr: c.ErrOrStderr(),
		GPUs:    ociruntime.NewInventory(config, self).GPUs,
		Limiter: func() (ociruntime.Limiter, error) { return ociruntime.FindLimiter(config, self) },
	}
	status, err := r.RunProcess(c.Context(), process)
	switch {
	case err == nil && status == 0:
		return nil
	case err == nil:
		return exited{status: status}
	case errors.Is(err, ociruntime.ErrNotStarted):
		return exited{exitNotRun, err}
	}
	return exited{exitRefused, byFlags{err}}
}

// byFlags names the flags in place of a container's variables.
type byFlags struct{ error }

func (b byFlags) Error() string {
	return strings.NewReplacer(api.EnvMemory, "--memory", api.EnvCores, "--cores", api.EnvDevices, "--gpus", api.EnvSlice, "--slice").Replace(b.error.Error())
}

func (b byFlags) Unwrap() error { return b.error }

// process checks the command line.
func (o runOptions) process(args, env []string) (ociruntime.Process, error) {
	requested, err := o.request()
	if err != nil {
		return ociruntime.Process{}, exited{exitRefused, err}
	}
	path, err := exec.LookPath(args[0])
	switch {
	case errors.Is(err, fs.ErrPermission):
		return ociruntime.Process{}, exited{exitNotRun, err}
	case err != nil:
		return ociruntime.Process{}, exited{exitNotFound, err}
	}
	p := ociruntime.Process{Path: path, Args: args, Env: env, Request: requested}
	owner := caller(env)
	if o.user != "" {
		u, err := lookUp(o.user)
		if err == nil {
			p.As, err = credential(u)
		}
		if err != nil {
			return p, exited{exitRefused, fmt.Errorf("--user: %w", err)}
		}
		owner = u.Username
		p.Env = append(withoutVariables(p.Env, "HOME", "USER", "LOGNAME"), "HOME="+u.HomeDir, "USER="+u.Username, "LOGNAME="+u.Username)
	}
	p.Name = cmp.Or(o.name, fmt.Sprintf("%s.%s.%d", owner, filepath.Base(args[0]), os.Getpid()))
	if o.name == "" {
		p.Name = unusual.ReplaceAllString(p.Name, "_")
	} else if !usual.MatchString(o.name) {
		return p, exited{exitRefused, fmt.Errorf("--name: %q is not a name: use letters, digits, and _ . - after the first, 63 at most", o.name)}
	}
	return p, nil
}

var (
	unusual = regexp.MustCompile(`[^a-zA-Z0-9_.-]`)
	usual   = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)
)

// request returns the variables of a container with this request.
func (o runOptions) request() (env []string, err error) {
	add := func(flag, name, value string, check func(string) error) {
		if value == "" {
			return
		}
		if wrong := check(value); wrong != nil && err == nil {
			err = fmt.Errorf("--%s: %w", flag, wrong)
		}
		env = append(env, name+"="+value)
	}
	add("memory", api.EnvMemory, o.memory, func(v string) error { _, err := size.Parse(v); return err })
	if o.cores != 0 {
		add("cores", api.EnvCores, strconv.Itoa(o.cores), func(v string) error { _, err := request.ParseCores(v); return err })
	}
	gpus := o.gpus
	if gpus == "" && o.slice == "" {
		gpus = "1"
	}
	add("gpus", api.EnvDevices, gpus, func(v string) error { _, err := request.ParseDevices(v); return err })
	add("slice", api.EnvSlice, o.slice, func(string) error { return nil })
	return env, err
}

func withoutVariables(env []string, names ...string) (left []string) {
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		drop := false
		for _, n := range names {
			drop = drop || n == name
		}
		if !drop {
			left = append(left, e)
		}
	}
	return left
}

// caller is the person, also behind sudo.
func caller(env []string) string {
	for _, e := range env {
		if name, is := strings.CutPrefix(e, "SUDO_USER="); is && name != "" && os.Getuid() == 0 {
			return name
		}
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

func lookUp(name string) (*user.User, error) {
	if _, err := strconv.Atoi(name); err == nil {
		return user.LookupId(name)
	}
	return user.Lookup(name)
}

func credential(u *user.User) (*syscall.Credential, error) {
	groups, err := u.GroupIds()
	if err != nil {
		return nil, err
	}
	var ids []uint32
	for _, id := range append([]string{u.Uid, u.Gid}, groups...) {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, err
		}
		ids = append(ids, uint32(n))
	}
	return &syscall.Credential{Uid: ids[0], Gid: ids[1], Groups: ids[2:]}, nil
}
