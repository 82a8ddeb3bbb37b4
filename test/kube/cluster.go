package kube

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpuslice/gpuslice/test/harness"
)

// Options are the differences between clusters.
type Options struct {
	// GPUs are the simulated GPUs; EightGPUs when empty.
	GPUs []string
	// Component is the one that places pods; Framework when empty.
	Component Component
	// Progress is called at each step; it may be nil.
	Progress func(format string, args ...any)
}

// EightGPUs are of two models, at two sockets: pairs on a switch, and one on NVLinks.
var EightGPUs = []string{
	"H200:numa=0,pci_root=1,pci_switch=1", "H200:numa=0,pci_root=1,pci_switch=1",
	"H200:numa=0,pci_root=1,pci_switch=2", "H200:numa=0,pci_root=1,pci_switch=2",
	"H200:numa=1,nvlink=5:8", "H200:numa=1",
	"A100-80GB:numa=1,pci_root=2,pci_switch=3", "A100-80GB:numa=1,pci_root=2,pci_switch=3",
}

// Cluster is a Kubernetes of one node, to which AddNode adds another.
type Cluster struct {
	*harness.Node
	// Dir holds everything of the cluster: it is the node's.
	Dir string
	// API is the administrator's client.
	API kubernetes.Interface
	// The programs, by which tests stop and start them.
	Etcd, APIServer, ControllerManager, Kubelet, KubeProxy *harness.Process
	// Scheduler is the cluster's kube-scheduler; what is ours are pods.
	Scheduler *harness.Process

	name string // of its node
	ip   string
	// apiServerArgs are further arguments of kube-apiserver.
	apiServerArgs []string
	options       Options
	network       network
	namespaces    *namespaces // none where there are no nodes
	agentArgs     []string    // of the release
	admission     *admission  // while it is removed
	identities    *identities
	second        *Cluster // while it is there
	noGPUs        bool     // its node has none
}

// New brings a cluster up. It has to be closed also after an error.
func New(ctx context.Context, o Options) (*Cluster, error) {
	if len(o.GPUs) == 0 {
		o.GPUs = EightGPUs
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	c := &Cluster{name: harness.NodeName, options: o}
	var err error
	c.Node, err = harness.NewNode(ctx, harness.NodeOptions{
		GPUs: o.GPUs, NoAgent: true, Progress: o.Progress,
		Enter: func(m *harness.Machine) ([]string, error) { return c.enter(m, nil) },
	})
	if err != nil {
		return c, err
	}
	return c, c.start(ctx)
}

// enter prepares the machine for containerd, and returns the command that starts programs there. outside is the one that starts
// programs at the other end of its network; none: on this machine.
func (c *Cluster) enter(m *harness.Machine, outside []string) (command []string, err error) {
	c.Dir, c.network = m.Dir, newNetwork(m.Dir)
	c.ip = c.network.node
	mounts, err := c.mounts(m)
	if err != nil {
		return nil, err
	}
	if c.namespaces, err = newNamespaces(context.Background(), c.Dir, mounts); err != nil {
		return nil, err
	}
	if err := c.network.join(context.Background(), c.namespaces, outside); err != nil {
		return nil, err
	}
	return c.namespaces.enter(), c.writeCNI()
}

// stateDir and simulated are where the cluster's programs see the state directory, and the simulated driver.
const stateDir, simulated = "/run/gpuslice", "/var/lib/simgpu"

// mounts are what the node has at the paths that the chart expects, by those paths.
func (c *Cluster) mounts(m *harness.Machine) (map[string]string, error) {
	nri := filepath.Join(c.Dir, "c/nri")
	m.SeenAt(stateDir)
	mounts := map[string]string{stateDir: m.StateDir(), "/run/nri": nri, "/run/cdi": m.CDIDir()}
	if !c.noGPUs {
		driver, err := harness.Artefact("sim")
		if err != nil {
			return nil, err
		}
		mounts[simulated+"/lib"], mounts[simulated+"/state"] = driver, filepath.Dir(m.SimState())
	}
	return mounts, os.MkdirAll(nri, 0o711)
}

// LibraryDir is the directory on the node that the limiter is installed to.
func (c *Cluster) LibraryDir() string {
	return filepath.Join(c.Dir, "private/var/lib/gpuslice/lib")
}

// addressOf is a loopback address made of a random name, so that two clusters don't meet: of 127.64.0.0/10.
func addressOf(dir string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir))
	sum := h.Sum32()
	return fmt.Sprintf("127.%d.%d.%d", 64+sum>>16%64, sum>>8&0xff, sum&0xff)
}

func (c *Cluster) start(ctx context.Context) error {
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"etcd", c.StartEtcd},
		{"kube-apiserver", c.StartAPIServer},
		{"kube-controller-manager", c.StartControllerManager},
		{"kube-scheduler", c.StartScheduler},
		{"kubelet", c.StartKubelet},
		{"kube-proxy", c.StartKubeProxy},
		{"the chart", c.installChart},
		{"the node is ready", c.WaitNode},
	} {
		c.options.Progress("%s", step.name)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// Client is a client of the API server for a user.
func (c *Cluster) Client(u User) (kubernetes.Interface, error) {
	config, err := c.Config(u)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// Config is a user's access to the API server, without a rate limit.
func (c *Cluster) Config(u User) (*rest.Config, error) {
	path, err := c.Kubeconfig(u)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // no limit
	return config, nil
}

// Kubeconfig is the path of a user's kubeconfig.
func (c *Cluster) Kubeconfig(u User) (string, error) { return c.identities.kubeconfig(u) }

// startDaemon starts a program of Kubernetes.
func (c *Cluster) startDaemon(name string, args []string) (*harness.Process, error) {
	path, err := Tool(name)
	if err != nil {
		return nil, err
	}
	return c.startInside(name, append([]string{path}, args...)...)
}

// startInside starts a program on the cluster's machine.
func (c *Cluster) startInside(name string, command ...string) (*harness.Process, error) {
	if c.namespaces != nil {
		command = append(c.namespaces.enter(), command...)
	}
	return harness.StartProcess(c.Dir, name, nil, command[0], command[1:]...)
}

// await waits until a daemon answers, and returns the reason if it doesn't.
func await(ctx context.Context, p *harness.Process, patience time.Duration, probe func(context.Context) error) error {
	err := harness.Until(ctx, patience, func(ctx context.Context) error {
		select {
		case <-p.Exited():
			return errors.New("it exited")
		default:
		}
		return probe(ctx)
	})
	if err != nil {
		return fmt.Errorf("%s does not answer: %w\n%s", p.Name, err, p.LogTail(20))
	}
	return nil
}

// Close takes everything down and reports what did not go.
func (c *Cluster) Close(ctx context.Context) error {
	var errs []error
	if c.second != nil {
		errs = append(errs, c.second.Close(ctx))
	}
	for _, p := range []*harness.Process{c.Scheduler, c.KubeProxy, c.Kubelet, c.ControllerManager} {
		errs = append(errs, stop(p))
	}
	if c.Containerd != nil {
		errs = append(errs, c.Containerd.Close(ctx))
	}
	// It would wait for the end of watches without a reader.
	for _, p := range []*harness.Process{c.APIServer, c.Etcd} {
		if p != nil {
			p.Kill()
		}
	}
	if c.namespaces != nil {
		c.namespaces.close()
		errs = append(errs, c.network.leave(ctx))
	}
	if c.Machine != nil {
		errs = append(errs, c.Machine.Close())
	} else if c.Dir != "" {
		errs = append(errs, os.RemoveAll(c.Dir))
	}
	return errors.Join(errs...)
}

func stop(p *harness.Process) error {
	if p == nil {
		return nil
	}
	return p.Stop(harness.StopPatience)
}

// SaveLogs copies the logs of all programs to a directory.
func (c *Cluster) SaveLogs(to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	var errs []error
	if c.second != nil {
		errs = append(errs, c.second.SaveLogs(filepath.Join(to, c.second.name)))
	}
	for _, pattern := range []string{"*.log", "c/*.log", "private/var/log/pods/" + Namespace + "_*/*/*.log"} {
		files, err := filepath.Glob(filepath.Join(c.Dir, pattern))
		errs = append(errs, err)
		for _, file := range files {
			data, err := os.ReadFile(file)
			name := filepath.Base(file)
			if strings.Contains(pattern, "/pods/") {
				name = filepath.Base(filepath.Dir(filepath.Dir(file))) + "_" + name
			}
			errs = append(errs, err, os.WriteFile(filepath.Join(to, name), data, 0o644))
		}
	}
	return errors.Join(errs...)
}

// cgroup is the cluster's own, below which the kubelet makes its pods'.
func (c *Cluster) cgroup() string { return filepath.Base(c.Dir) }

func makeCgroups(name string) error {
	roots, err := harness.CgroupRoots()
	for _, root := range roots {
		err = errors.Join(err, os.MkdirAll(filepath.Join(root, name), 0o755))
	}
	return err
}
