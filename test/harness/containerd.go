package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"text/template"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerdConfig is the whole configuration of the test's containerd. Out of the
// ordinary are the private paths and restrict_oom_score_adj: where the machine
// lacks CAP_SYS_RESOURCE, runc dies on a lower oom_score_adj.
var containerdConfig = template.Must(template.New("config.toml").Parse(`version = 3
root = "{{.Dir}}/root"
state = "{{.Dir}}/state"

[grpc]
  address = "{{.Dir}}/c.sock"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{{.PauseImage}}"

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  cdi_spec_dirs = ["{{.Dir}}/no-cdi"]

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  options = { SystemdCgroup = {{.SystemdCgroup}} }
{{range $name, $binary := .Runtimes}}
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{{$name}}]
  runtime_type = "io.containerd.runc.v2"
  options = { BinaryName = "{{$binary}}", SystemdCgroup = {{$.SystemdCgroup}} }
{{end}}
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "{{.Dir}}/cni"

[plugins.'io.containerd.nri.v1.nri']
  disable = {{.DisableNRI}}
  socket_path = "{{.Dir}}/nri/nri.sock"
  plugin_path = "{{.Dir}}/nri/plugins"
  plugin_config_path = "{{.Dir}}/nri/conf.d"
  plugin_request_timeout = "{{.RequestTimeout}}"

[plugins.'io.containerd.nri.v1.nri'.default_validator]
  enable = true

[plugins.'io.containerd.internal.v1.opt']
  path = "{{.Dir}}/opt"
`))

// ContainerdOptions are the differences between the test's containerds.
type ContainerdOptions struct {
	// DisableNRI makes a containerd without NRI, for comparison.
	DisableNRI bool
	// RequestTimeout is NRI's plugin_request_timeout; 2 s when it is zero, as in containerd.
	RequestTimeout time.Duration
	// Runtimes are further runtime handlers: the runtime's path by the handler's name.
	Runtimes map[string]string
	// Env is for containerd, and for the runtimes that it starts.
	Env []string
	// Enter is the command that containerd's is appended to (nsenter, to start it in
	// another mount namespace); none when empty.
	Enter []string
}

// Containerd is a real containerd under a directory of its own, or the runtime that CRIRuntimeEnv names in its place.
type Containerd struct {
	Dir string
	CRI cri.RuntimeServiceClient

	runtime criRuntime
	tools   string
	env     []string
	enter   []string
	process *Process
	conn    *grpc.ClientConn
}

// Socket is where CRI answers.
func (c *Containerd) Socket() string { return filepath.Join(c.Dir, "c.sock") }

// NRISocket is where plugins connect.
func (c *Containerd) NRISocket() string { return filepath.Join(c.Dir, "nri", "nri.sock") }

// NewContainerd writes the configuration and starts containerd. dir must be short:
// a unix socket's path has at most 107 bytes.
func NewContainerd(ctx context.Context, dir string, o ContainerdOptions) (*Containerd, error) {
	if o.RequestTimeout == 0 {
		o.RequestTimeout = 2 * time.Second * slowness()
	}
	for _, sub := range []string{"", "cni", "nri", "nri/plugins", "nri/conf.d"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o711); err != nil {
			return nil, err
		}
	}
	driver, err := cgroupDriver()
	if err != nil {
		return nil, err
	}
	c := &Containerd{Dir: dir, env: o.Env, enter: o.Enter}
	name := cmp.Or(os.Getenv(CRIRuntimeEnv), "containerd")
	if err := c.use(name); err != nil {
		return nil, err
	}
	if err := os.WriteFile(c.runtimePath(), []byte(name), 0o644); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "policy.json"), []byte(imagePolicy), 0o644); err != nil {
		return nil, err
	}
	file, err := os.Create(filepath.Join(dir, "config.toml"))
	if err != nil {
		return nil, err
	}
	err = c.runtime.config.Execute(file, map[string]any{
		"Dir": dir, "PauseImage": PauseImage, "DisableNRI": o.DisableNRI, "RequestTimeout": o.RequestTimeout,
		"Runtimes": o.Runtimes, "SystemdCgroup": driver == "systemd", "Tools": c.tools,
	})
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("write the configuration of %s: %w", c.runtime.name, err)
	}
	return c, c.Start(ctx)
}

// Start starts containerd (again) and waits until CRI answers.
func (c *Containerd) Start(ctx context.Context) error {
	// containerd finds the shim and runc by PATH.
	env := append([]string{"PATH=" + c.tools + ":/usr/sbin:/usr/bin:/sbin:/bin"}, c.env...)
	command := append(slices.Clone(c.enter), filepath.Join(c.tools, c.runtime.program))
	command = append(command, c.runtime.flags(c.Dir)...)
	var err error
	c.process, err = StartProcess(c.Dir, c.runtime.program, env, command[0], command[1:]...)
	if err != nil {
		return err
	}
	if c.conn == nil {
		if err := c.dial(); err != nil {
			return errors.Join(err, c.Stop())
		}
	}
	err = Until(ctx, StartPatience, func(ctx context.Context) error {
		select {
		case <-c.process.Exited():
			return fmt.Errorf("%s exited", c.runtime.program)
		default:
		}
		_, err := c.CRI.Status(ctx, &cri.StatusRequest{})
		return err
	})
	if err != nil {
		return errors.Join(fmt.Errorf("%s does not answer: %w\n%s", c.runtime.program, err, c.process.LogTail(20)), c.Stop())
	}
	return nil
}

// dial makes the client of CRI. It outlives the daemon, as the kubelet's does, and
// finds the next one soon.
func (c *Containerd) dial() error {
	soon := backoff.DefaultConfig
	soon.BaseDelay, soon.MaxDelay = 10*time.Millisecond, 100*time.Millisecond
	conn, err := grpc.NewClient("unix://"+c.Socket(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(impatient),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: soon, MinConnectTimeout: 5 * time.Second}))
	if err != nil {
		return err
	}
	c.conn, c.CRI = conn, cri.NewRuntimeServiceClient(conn)
	return nil
}

// Stop stops the daemon; containers go on, as in real life. Calls that are under way,
// and those until the next Start, fail.
func (c *Containerd) Stop() error { return c.process.Stop(StopPatience) }

// Kill ends the daemon with SIGKILL; containers go on.
func (c *Containerd) Kill() { c.process.Kill() }

// LogTail returns the last lines of containerd's log.
func (c *Containerd) LogTail(lines int) string { return c.process.LogTail(lines) }

// Import loads an image archive.
func (c *Containerd) Import(ctx context.Context, archive string) error {
	return c.runtime.load(ctx, c, archive)
}

// Ctr runs ctr in CRI's namespace.
func (c *Containerd) Ctr(ctx context.Context, args ...string) (string, error) {
	return Run(ctx, nil, filepath.Join(c.tools, "ctr"), append([]string{"--address", c.Socket(), "--namespace", "k8s.io"}, args...)...)
}

// Runs reports whether the daemon was started and has not ended.
func (c *Containerd) Runs() bool {
	if c.process == nil {
		return false
	}
	select {
	case <-c.process.Exited():
		return false
	default:
		return true
	}
}

// Close removes every pod, stops the daemon, and unmounts what is left below its directory.
func (c *Containerd) Close(ctx context.Context) error {
	var errs []error
	if c.Runs() {
		errs = append(errs, c.RemoveAllPods(ctx), c.Stop())
	}
	if c.conn != nil {
		errs = append(errs, c.conn.Close())
	}
	errs = append(errs, c.runtime.cleanUp(c), unmountBelow(c.Dir))
	return errors.Join(errs...)
}

// RemoveAllPods stops and removes all that CRI lists.
func (c *Containerd) RemoveAllPods(ctx context.Context) error {
	pods, err := c.CRI.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	var errs []error
	for _, p := range pods.Items {
		errs = append(errs, c.removePod(ctx, p.Id))
	}
	return errors.Join(errs...)
}

// callPatience is how long one CRI call may take: a runtime that hangs fails a test
// and does not stop it.
const callPatience = time.Minute

func impatient(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, callPatience*slowness())
	defer cancel()
	return invoke(ctx, method, request, reply, conn, options...)
}
