package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pod is a sandbox to run, as the kubelet would ask for it.
type Pod struct {
	Name        string
	Namespace   string // "default" when empty
	UID         string // derived from the name when empty
	Annotations map[string]string
	// Handler is the runtime handler; the default one when empty.
	Handler string
	// HostPID has its containers name processes by the machine's numbers, if they want to.
	HostPID bool
}

// Container is a container to create in a pod.
type Container struct {
	Name    string
	Attempt uint32
	Image   string // WorkloadImage when empty
	Command []string
	Env     []string // KEY=value
	Mounts  []*cri.Mount
	Devices []*cri.Device
	// CDIDevices is CRI's field for the CDI devices of a device plugin's answer.
	CDIDevices []string
	Privileged bool
	// Annotations are what the kubelet adds of a device plugin's answer.
	Annotations map[string]string
	User        int64
	ReadOnly    bool
	// Security, if it is set, changes what it may do.
	Security func(*cri.LinuxContainerSecurityContext)
}

// Sandbox is a running pod.
type Sandbox struct {
	ID     string
	Pod    Pod
	config *cri.PodSandboxConfig
	c      *Containerd
}

// RunPod starts a sandbox with the host's network, which needs no CNI.
func (c *Containerd) RunPod(ctx context.Context, p Pod) (*Sandbox, error) {
	if p.Namespace == "" {
		p.Namespace = "default"
	}
	if p.UID == "" {
		p.UID = "uid-" + p.Name
	}
	logs := filepath.Join(c.Dir, "logs", p.UID)
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return nil, err
	}
	config := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: p.Name, Namespace: p.Namespace, Uid: p.UID},
		Annotations:  p.Annotations,
		LogDirectory: logs,
		Labels:       map[string]string{"io.kubernetes.pod.name": p.Name, "io.kubernetes.pod.namespace": p.Namespace, "io.kubernetes.pod.uid": p.UID},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: cgroupParent(filepath.Dir(c.Dir)),
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				Privileged: true, // of the sandbox: lets single containers be privileged
				NamespaceOptions: &cri.NamespaceOption{
					Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_POD,
				},
			},
		},
	}
	if p.HostPID {
		config.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_NODE
	}
	r, err := c.CRI.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: p.Handler})
	if err != nil {
		return nil, fmt.Errorf("run pod %s: %w", p.Name, err)
	}
	return &Sandbox{ID: r.PodSandboxId, Pod: p, config: config, c: c}, nil
}

// Create creates a container and returns its id.
func (s *Sandbox) Create(ctx context.Context, k Container) (string, error) {
	if k.Image == "" {
		k.Image = WorkloadImage
	}
	var env []*cri.KeyValue
	for _, e := range k.Env {
		key, value, _ := strings.Cut(e, "=")
		env = append(env, &cri.KeyValue{Key: key, Value: []byte(value)})
	}
	security := &cri.LinuxContainerSecurityContext{
		Privileged:     k.Privileged,
		ReadonlyRootfs: k.ReadOnly,
		RunAsUser:      &cri.Int64Value{Value: k.User},
		NamespaceOptions: &cri.NamespaceOption{
			Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_POD,
		},
	}
	if k.Security != nil {
		k.Security(security)
	}
	var cdi []*cri.CDIDevice
	for _, name := range k.CDIDevices {
		cdi = append(cdi, &cri.CDIDevice{Name: name})
	}
	r, err := s.c.CRI.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId:  s.ID,
		SandboxConfig: s.config,
		Config: &cri.ContainerConfig{
			Metadata:    &cri.ContainerMetadata{Name: k.Name, Attempt: k.Attempt},
			Image:       &cri.ImageSpec{Image: k.Image, UserSpecifiedImage: k.Image},
			Command:     k.Command,
			Envs:        env,
			Mounts:      k.Mounts,
			Devices:     k.Devices,
			CDIDevices:  cdi,
			LogPath:     fmt.Sprintf("%s_%d.log", k.Name, k.Attempt),
			Labels:      map[string]string{"io.kubernetes.container.name": k.Name},
			Annotations: k.Annotations,
			Linux:       &cri.LinuxContainerConfig{SecurityContext: security},
		},
	})
	if err != nil {
		return "", err
	}
	return r.ContainerId, nil
}

// Start creates and starts a container and returns its id.
func (s *Sandbox) Start(ctx context.Context, k Container) (string, error) {
	id, err := s.Create(ctx, k)
	if err != nil {
		return "", err
	}
	return id, s.c.StartContainer(ctx, id)
}

// Remove stops and removes the pod and its containers, in the kubelet's order.
func (s *Sandbox) Remove(ctx context.Context) error { return s.c.removePod(ctx, s.ID) }

// removePod removes a pod's containers before the pod, as the kubelet does. To leave
// them to RemovePodSandbox can hang containerd 2.4.2 for good: it takes the lock
// against plugin synchronisation a second time for each container, and when a
// plugin connects between the two, both wait for each other. So the pod stays
// until all of them are gone, and may be removed again.
func (c *Containerd) removePod(ctx context.Context, id string) error {
	list, err := c.CRI.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{PodSandboxId: id}})
	errs := []error{err}
	for _, k := range list.GetContainers() { // at once: for those that a pod still has, CRI-O waits 30 s
		_, err := c.CRI.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: k.Id})
		errs = append(errs, err)
	}
	_, err = c.CRI.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
	errs = append(errs, err)
	for _, k := range list.GetContainers() {
		_, err := c.CRI.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: k.Id})
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove pod %s: %w", id, err)
	}
	_, err = c.CRI.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

// StartContainer starts a created container.
func (c *Containerd) StartContainer(ctx context.Context, id string) error {
	_, err := c.CRI.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: id})
	return err
}

// Spec is the OCI spec of a container, as runc is or was given it.
func (c *Containerd) Spec(ctx context.Context, id string) (*rspec.Spec, error) {
	r, err := c.CRI.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return nil, err
	}
	var info struct {
		RuntimeSpec *rspec.Spec `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(r.Info["info"]), &info); err != nil {
		return nil, fmt.Errorf("read the verbose status of container %s: %w", id, err)
	}
	if info.RuntimeSpec == nil {
		return nil, fmt.Errorf("the verbose status of container %s has no spec", id)
	}
	return info.RuntimeSpec, nil
}

// bundle is the directory of a container's task.
func (c *Containerd) bundle(id string) string {
	return filepath.Join(c.Bundles(), id)
}

// Bundles is the directory of the tasks of all containers.
func (c *Containerd) Bundles() string { return filepath.Join(c.Dir, c.runtime.bundles) }

// RemoveContainer stops (at once) and removes a container.
func (c *Containerd) RemoveContainer(ctx context.Context, id string) error {
	_, stopErr := c.CRI.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id})
	_, removeErr := c.CRI.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
	return errors.Join(stopErr, removeErr)
}

// Exec runs a command in a container. A non-zero exit status is not an error.
func (c *Containerd) Exec(ctx context.Context, id string, command ...string) (stdout, stderr string, exitCode int, err error) {
	r, err := c.CRI.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: 60})
	if err != nil {
		return "", "", 0, fmt.Errorf("exec %s: %w", strings.Join(command, " "), err)
	}
	return string(r.Stdout), string(r.Stderr), int(r.ExitCode), nil
}

// Logs returns what a container wrote, of both streams, without CRI's line heads.
func (s *Sandbox) Logs(k Container) (string, error) {
	return ReadLog(filepath.Join(s.config.LogDirectory, fmt.Sprintf("%s_%d.log", k.Name, k.Attempt)))
}

// ReadLog returns what a file of CRI's logs has, without the line heads.
func ReadLog(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for line := range strings.Lines(string(data)) {
		// CRI's log line: <RFC 3339 time> <stream> <tag> <text>.
		if parts := strings.SplitN(line, " ", 4); len(parts) == 4 {
			out.WriteString(parts[3])
		}
	}
	return out.String(), nil
}

// Ended waits until a container runs no more, and returns its exit code and what it wrote: nothing if the runtime does not
// know how it ended.
func (s *Sandbox) Ended(ctx context.Context, k Container, id string, patience time.Duration) (code int, log string, err error) {
	var status *cri.ContainerStatus
	err = Until(ctx, patience, func(ctx context.Context) error {
		r, err := s.c.CRI.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			return err
		}
		if status = r.Status; status.State == cri.ContainerState_CONTAINER_RUNNING {
			return fmt.Errorf("container %s is %s", id, status.State)
		}
		return nil
	})
	if err != nil || status.State != cri.ContainerState_CONTAINER_EXITED {
		return 0, "", err
	}
	if log, err = s.Logs(k); err != nil {
		log = ""
	}
	return int(status.ExitCode), log, nil
}

// WaitExit waits until a container has exited and returns its exit code.
func (c *Containerd) WaitExit(ctx context.Context, id string, patience time.Duration) (int, error) {
	var code int
	err := Until(ctx, patience, func(ctx context.Context) error {
		r, err := c.CRI.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			return err
		}
		if r.Status.State != cri.ContainerState_CONTAINER_EXITED {
			return fmt.Errorf("container %s is %s", id, r.Status.State)
		}
		code = int(r.Status.ExitCode)
		return nil
	})
	return code, err
}

// ContainerPID is a container's first process.
func ContainerPID(c *Containerd, id string) (int, error) {
	data, err := os.ReadFile(filepath.Join(c.bundle(id), c.runtime.pidFile))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// KillContainer kills a container's first process, past containerd.
func KillContainer(c *Containerd, id string) error {
	pid, err := ContainerPID(c, id)
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}
