package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
)

// DockerdOptions are the differences between the test's docker daemons.
type DockerdOptions struct {
	// Config are further settings of daemon.json.
	Config map[string]any
	// Remapped: containers run in user namespaces, so that their root is not root outside.
	Remapped bool
	// Newer is dockerd 28 of test/tools-docker with the tests' containerd, in place of Debian's packages.
	Newer bool
	// Program is another dockerd in place of Newer's.
	Program string
	// ContainerdStore: containerd has the images of a newer daemon.
	ContainerdStore bool
}

// Dockerd is a dockerd, by default Debian's, with the containerd that it manages, under a directory of
// its own. Its runtimes are runc and gpuslice, the wrapper.
type Dockerd struct {
	Dir string

	m       *Machine
	options DockerdOptions
	process *Process
}

// NewDockerd starts a dockerd and gives it the test images. It has to be closed also
// after an error.
func NewDockerd(ctx context.Context, m *Machine, o DockerdOptions) (*Dockerd, error) {
	dir, err := os.MkdirTemp(m.Dir, "d") // short: a socket's path has at most 107 bytes
	if err != nil {
		return nil, err
	}
	d := &Dockerd{Dir: dir, m: m, options: o}
	if err := os.Chmod(dir, 0o711); err != nil {
		return d, err
	}
	if err := d.writeConfig(); err != nil {
		return d, err
	}
	if err := d.Start(ctx); err != nil {
		return d, err
	}
	return d, d.importImages(ctx)
}

// writeConfig writes daemon.json. Out of the ordinary are the private paths, and that
// nothing of the machine's network is touched.
func (d *Dockerd) writeConfig() error {
	wrapper, err := Wrapper()
	if err != nil {
		return err
	}
	driver, err := cgroupDriver()
	if err != nil {
		return err
	}
	config := map[string]any{
		"data-root":     filepath.Join(d.Dir, "data"),
		"exec-root":     filepath.Join(d.Dir, "exec"),
		"pidfile":       filepath.Join(d.Dir, "pid"),
		"hosts":         []string{d.host()},
		"bridge":        "none",
		"iptables":      false,
		"ip6tables":     false,
		"live-restore":  true,
		"cgroup-parent": cgroupParent(d.m.Dir),
		"exec-opts":     []string{"native.cgroupdriver=" + driver}, // else it depends on the machine
		"runtimes":      map[string]any{"gpuslice": map[string]any{"path": wrapper}},
	}
	if d.options.Remapped {
		config["userns-remap"] = remapUser
	}
	if d.options.Newer {
		config["userland-proxy"] = false // it would be another program
		config["features"] = map[string]bool{"containerd-snapshotter": d.options.ContainerdStore}
		config["cdi-spec-dirs"] = []string{d.m.CDIDir()}
	}
	for key, value := range d.options.Config {
		config[key] = value
	}
	data, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(d.Dir, "daemon.json"), data, 0o644)
}

func (d *Dockerd) host() string { return "unix://" + filepath.Join(d.Dir, "docker.sock") }

// dockerdTries is how often a daemon is started that ends: it gives its containerd 15 s to
// start, which isn't always enough on a busy machine. The next one finds it running.
const dockerdTries = 4

// Start starts the daemon (again) and waits until it answers.
func (d *Dockerd) Start(ctx context.Context) error {
	path, search, err := d.program()
	if err != nil {
		return err
	}
	command := []string{path, "--config-file", filepath.Join(d.Dir, "daemon.json")}
	if d.options.Remapped {
		command = append([]string{"/usr/bin/unshare", "--mount", "--propagation", "unchanged", "/bin/sh", "-euc", remappedScript, d.Dir, d.m.StateDir(), d.m.Dir}, command...)
	}
	for range dockerdTries {
		d.process, err = StartProcess(d.Dir, "dockerd", append(d.m.RuntimeEnv(), search), command[0], command[1:]...)
		if err != nil {
			return err
		}
		if err = d.wait(ctx); !errors.Is(err, errDockerdExited) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("dockerd does not answer: %w\n%s", err, d.LogTail(20))
	}
	return nil
}

// program returns the daemon's program and PATH, by which it finds containerd, the shim and the runtimes' helpers.
func (d *Dockerd) program() (path, search string, err error) {
	if !d.options.Newer {
		path, err = debian("dockerd", "docker.io")
		return path, debianPath, err
	}
	if path = d.options.Program; path == "" {
		if path, err = tool("--where-docker", "dockerd"); err != nil {
			return "", "", err
		}
	}
	containerd, err := Tool("containerd")
	return path, "PATH=" + filepath.Join(d.Dir, "bin") + ":" + filepath.Dir(containerd) + ":" + strings.TrimPrefix(debianPath, "PATH="), err
}

// InstallNvidiaHook gives a newer daemon NVIDIA's hook, which it adds to containers with --gpus from its next start on.
func (d *Dockerd) InstallNvidiaHook() error {
	hook, err := tool("--where-nvidia", "nvidia-container-runtime-hook")
	if err != nil {
		return err
	}
	bin := filepath.Join(d.Dir, "bin")
	return errors.Join(os.Mkdir(bin, 0o755), os.Symlink(hook, filepath.Join(bin, filepath.Base(hook))))
}

// remapUser is a user of Debian with subordinate ids for the containers' users.
const remapUser = "daemon"

// remappedScript gives a daemon, in a mount namespace of its own, what user namespaces
// need of the machine: subordinate ids, and the GPUs' device nodes at their own paths,
// as the runtime binds them where a user namespace may make none. The machine sees none of these mounts, and those of the
// state directory: the wrapper refuses to make mounts that the machine does not see.
const remappedScript = `dir=$0 state=$1 machine=$2; shift 2
cut -d ' ' -f 5 /proc/self/mountinfo | while read -r point; do
	case $point in
	"$state" | "$state"/*) ;;
	*) mount --make-private "$point" ;;
	esac
done
echo "` + remapUser + `:100000:65536" >"$dir/subid"
mount --bind "$dir/subid" /etc/subuid
mount --bind "$dir/subid" /etc/subgid
mkdir -p "$dir/dev"
mount -t tmpfs -o mode=755 dev "$dir/dev"
for entry in /dev/*; do
	if [ -d "$entry" ] && ! [ -L "$entry" ]; then
		mkdir "$dir$entry"
		mount --rbind "$entry" "$dir$entry"
	else
		cp -a "$entry" "$dir$entry"
	fi
done
cp -a "$machine"/dev/* "$dir/dev/"
mount --move "$dir/dev" /dev
exec "$@"`

var errDockerdExited = errors.New("dockerd exited")

// wait waits until the daemon answers or ends.
func (d *Dockerd) wait(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	exited := d.process.Exited() // not d.process: there will be another
	go func() {
		select {
		case <-exited:
			cancel(errDockerdExited)
		case <-ctx.Done():
		}
	}()
	err := Until(ctx, time.Minute, func(ctx context.Context) error {
		_, err := d.Docker(ctx, "version")
		return err
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// Stop stops the daemon; containers go on, because of live-restore.
func (d *Dockerd) Stop() error { return d.process.Stop(StopPatience) }

// Kill ends the daemon with SIGKILL; containers go on.
func (d *Dockerd) Kill() { d.process.Kill() }

// LogTail returns the last lines of the daemon's log.
func (d *Dockerd) LogTail(lines int) string { return d.process.LogTail(lines) }

// Docker runs the docker CLI and returns what it wrote to standard output. The error
// holds what it wrote to standard error.
func (d *Dockerd) Docker(ctx context.Context, args ...string) (string, error) {
	path, err := debian("docker", "docker.io")
	if err != nil {
		return "", err
	}
	// A config of the user that runs the tests has no effect.
	return Run(ctx, []string{"DOCKER_CONFIG=" + d.Dir, "DOCKER_HOST=", "DOCKER_CONTEXT="}, path, append([]string{"--host", d.host()}, args...)...)
}

// Request sends a request of docker's API with a JSON body, as compose and newer clients do, and decodes the answer.
func (d *Dockerd) Request(ctx context.Context, method, path string, body, answer any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(d.host(), "unix://"))
	}}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err
	case response.StatusCode >= http.StatusBadRequest:
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, bytes.TrimSpace(text))
	case answer == nil:
		return nil
	}
	return json.Unmarshal(text, answer)
}

// importImages makes the workload's image and the image that sets NVIDIA_VISIBLE_DEVICES=all.
func (d *Dockerd) importImages(ctx context.Context) error {
	archive := filepath.Join(d.Dir, "root.tar")
	if err := WriteRootTar(archive); err != nil {
		return err
	}
	for name, env := range map[string]string{WorkloadImage: "", GreedyImage: "NVIDIA_VISIBLE_DEVICES=all"} {
		args := []string{"import", "--change", `CMD ["/bin/sleep", "2147483647"]`, "--change", "ENV PATH=/bin:" + WorkloadDir}
		if env != "" {
			args = append(args, "--change", "ENV "+env)
		}
		if _, err := d.Docker(ctx, append(args, archive, name)...); err != nil {
			return err
		}
	}
	return nil
}

// bundle is the directory of a container's task.
func (d *Dockerd) bundle(id string) string {
	return filepath.Join(d.Dir, "exec", "containerd", "daemon", "io.containerd.runtime.v2.task", "moby", id)
}

// Spec is the OCI spec that the low-level runtime was given for a running container.
func (d *Dockerd) Spec(id string) (*rspec.Spec, error) {
	data, err := os.ReadFile(filepath.Join(d.bundle(id), "config.json"))
	if err != nil {
		return nil, err
	}
	spec := &rspec.Spec{}
	return spec, json.Unmarshal(data, spec)
}

// Containers are the ids of all containers, whatever their state.
func (d *Dockerd) Containers(ctx context.Context) ([]string, error) {
	out, err := d.Docker(ctx, "ps", "--all", "--quiet", "--no-trunc")
	return strings.Fields(out), err
}

// RemoveAll removes every container, running or not.
func (d *Dockerd) RemoveAll(ctx context.Context) error {
	ids, err := d.Containers(ctx)
	if err != nil || len(ids) == 0 {
		return err
	}
	_, err = d.Docker(ctx, append([]string{"rm", "--force"}, ids...)...)
	return err
}

func (d *Dockerd) containerdSocket() string {
	return filepath.Join(d.Dir, "exec", "containerd", "containerd.sock")
}

// Shims are the processes that watch this daemon's containers.
func (d *Dockerd) Shims() ([]int, error) { return shims(d.containerdSocket()) }

// Runtimes are the processes of the wrapper and of runc that are at work for this daemon.
func (d *Dockerd) Runtimes() ([]int, error) {
	return Processes(func(program, args string) bool {
		return (program == "gpuslice-runtime" || program == "runc") && strings.Contains(args, d.Dir+"/exec/")
	})
}

// Containerd is the process of the containerd that the daemon manages.
func (d *Dockerd) Containerd() ([]int, error) {
	return Processes(func(program, args string) bool {
		return program == "containerd" && strings.Contains(args, "\x00"+d.Dir+"/exec/")
	})
}

// Close removes every container, stops the daemon, and unmounts what is left.
func (d *Dockerd) Close(ctx context.Context) error {
	if d.process == nil {
		return nil // it was never there
	}
	var errs []error
	select {
	case <-d.process.Exited():
	default:
		errs = append(errs, d.RemoveAll(ctx), d.Stop())
	}
	errs = append(errs, killShims(d.containerdSocket()), unmountBelow(d.Dir))
	return errors.Join(errs...)
}
