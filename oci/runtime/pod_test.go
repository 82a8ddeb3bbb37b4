package ociruntime

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
)

// pods is a bench with runc and NVIDIA's runtime, which records its calls.
type pods struct {
	*bench
	ran string
}

func newPods(t *testing.T) *pods {
	p := &pods{bench: newBench(t)}
	bin := filepath.Join(p.dir, "bin")
	for _, name := range []string{"runc", "nvidia-container-runtime"} {
		write(t, filepath.Join(bin, name), "", 0o755)
	}
	p.Self = write(t, filepath.Join(p.dir, "self/gpuslice-runtime"), "", 0o755)
	p.Env = []string{"PATH=" + bin}
	p.Config.Runtimes = []string{"runc"}
	p.Config.ExemptNamespaces = []string{"gpuslice-system"}
	p.Exec = func(path string, _, _ []string) error { p.ran = filepath.Base(path); return errors.New("it ran") }
	return p
}

// create makes a container of containerd's CRI out of the recorded config.
func (p *pods) create(t *testing.T, namespace string, change func(*rspec.Spec)) (*rspec.Spec, string) {
	t.Helper()
	config := filepath.Join(p.bundle(t, "cri"), configName)
	at := filepath.Join(p.dir, "task", namespace, id, configName)
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(t, os.Rename(config, at))
	bundle, err := OpenBundle(at)
	require.NoError(t, err)
	change(bundle.Spec)
	require.NoError(t, bundle.Save())
	require.NoError(t, os.RemoveAll(beside(at, originalSuffix)))
	output := new(bytes.Buffer)
	p.Stderr, p.ran = output, ""
	p.Main(context.Background(), []string{"--log", filepath.Join(p.dir, "log"), "create", "--bundle", filepath.Dir(at), id})
	bundle, err = OpenBundle(at)
	require.NoError(t, err)
	if data, err := os.ReadFile(at); err == nil { // after create
		bundle, err = decodeBundle(data)
		require.NoError(t, err)
	}
	return bundle.Spec, output.String()
}

func env(entries ...string) func(*rspec.Spec) {
	return func(s *rspec.Spec) { s.Process.Env = append(s.Process.Env, entries...) }
}

func annotated(key, value string) func(*rspec.Spec) {
	return func(s *rspec.Spec) { s.Annotations[key] = value }
}

// Without an agent, NVIDIA's runtime is not called for a container of Kubernetes without a
// grant, whatever it requests.
func TestPodWithoutGrantNeverReachesNvidiasRuntime(t *testing.T) {
	privileged := func(s *rspec.Spec) {
		all := int64(-1)
		s.Process.Capabilities.Bounding = append(s.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
		s.Linux.Resources.Devices = []rspec.LinuxDeviceCgroup{{Allow: true, Type: "a", Major: &all, Minor: &all, Access: "rwm"}}
		s.Process.Env = append(s.Process.Env, "NVIDIA_VISIBLE_DEVICES=all")
	}
	mount := func(destination string) func(*rspec.Spec) {
		return func(s *rspec.Spec) {
			s.Mounts = append(s.Mounts, rspec.Mount{Destination: destination, Type: "bind", Source: "/dev/null", Options: []string{"bind"}})
		}
	}
	for description, test := range map[string]struct {
		change  func(*rspec.Spec)
		refused string
	}{
		"nothing":                   {change: func(*rspec.Spec) {}},
		"all":                       {change: env("NVIDIA_VISIBLE_DEVICES=all")},
		"twice":                     {change: env("NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=all")},
		"a CDI name":                {change: env("NVIDIA_VISIBLE_DEVICES=management.nvidia.com/gpu=all")},
		"an old image":              {change: env("CUDA_VERSION=8.0")},
		"a swarm resource":          {change: env("DOCKER_RESOURCE_GPU=all")},
		"IMEX channels":             {change: env("NVIDIA_IMEX_CHANNELS=0")},
		"MIG monitor":               {change: env("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all")},
		"a request of docker's":     {change: env("GPUSLICE_MEMORY=8GiB", "GPUSLICE_CORES=50")},
		"a bad request of docker's": {change: env("GPUSLICE_MEMORY=lots")},
		"another namespace's name":  {change: env("POD_NAMESPACE=gpuslice-system", BarrierEnv+"=1")},
		"CRI-O's annotation":        {change: annotated("io.kubernetes.cri-o.Namespace", "gpuslice-system")},
		"privileged":                {change: privileged},
		"a sandbox":                 {change: annotated(criType, "sandbox")},
		"a volume mount":            {change: mount("/var/run/nvidia-container-devices/all"), refused: "requests a GPU from NVIDIA's runtime by the mount"},
		"a CDI volume mount":        {change: mount("/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/all"), refused: "requests a GPU from NVIDIA's runtime by the mount"},
		"a CDI annotation":          {change: annotated("cdi.k8s.io/gpu", "nvidia.com/gpu=all"), refused: "requests the CDI device"},
		"a CDI device that containerd made": {change: func(s *rspec.Spec) {
			s.Linux.Devices = []rspec.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: 195}}
		}, refused: "has the device node /dev/nvidia0"},
	} {
		t.Run(description, func(t *testing.T) {
			p := newPods(t)
			spec, output := p.create(t, "k8s.io", test.change)
			if test.refused != "" {
				require.Contains(t, output, "no gpuslice grant")
				require.Contains(t, output, test.refused)
				require.Empty(t, p.ran)
				return
			}
			require.Equal(t, "runc", p.ran, output)
			c := oci.ContainerOf(id, spec)
			require.False(t, oci.RequestsGPU(c), "%q", spec.Process.Env)
			require.Empty(t, p.claims(t))
		})
	}
}

// The agent's own container gets the driver while no plugin is connected, by the namespace that
// containerd writes. The same annotations from docker, podman or CRI-O are not trusted: users
// choose them there.
func TestExemptNamespaceReachesNvidiasRuntime(t *testing.T) {
	asks := func(s *rspec.Spec) {
		s.Annotations[criNamespace] = "gpuslice-system"
		s.Process.Env = append(s.Process.Env, "NVIDIA_VISIBLE_DEVICES=all")
	}
	p := newPods(t)
	spec, output := p.create(t, "k8s.io", asks)
	require.Equal(t, "nvidia-container-runtime", p.ran, output)
	require.Contains(t, spec.Process.Env, "NVIDIA_VISIBLE_DEVICES=all")
	require.Contains(t, spec.Process.Env, BarrierEnv+"=1", "the agent can see that the barrier is in effect")

	for description, namespace := range map[string]string{"docker": "moby", "nerdctl": "default"} {
		p := newPods(t)
		_, output := p.create(t, namespace, asks)
		require.Equal(t, "runc", p.ran, "%s: %s", description, output)
	}
	p = newPods(t)
	_, output = p.create(t, "k8s.io", func(s *rspec.Spec) { asks(s); s.Annotations[crioType] = "container" })
	require.Equal(t, "runc", p.ran, output)

	// Without NVIDIA's runtime it is refused, not created without its GPUs.
	p = newPods(t)
	p.Config.NvidiaRuntime = "/no/such/runtime"
	_, output = p.create(t, "k8s.io", asks)
	require.Empty(t, p.ran)
	require.Contains(t, output, "set nvidiaRuntime in /etc/gpuslice/runtime.yaml")
}

// NVIDIA's runtime creates a container that the NRI plugin has limited if it has to inject the
// GPU, otherwise runc does. The claim must be in the ledger: mounts of its files are no proof.
func TestPodWithGrantReachesNvidiasRuntime(t *testing.T) {
	for _, test := range []struct {
		description, visible, want string
		claimed, common            bool
	}{
		{"injected by NVIDIA's runtime", gpu0, "nvidia-container-runtime", true, false},
		{"injected by CDI", "void", "runc", true, false},
		{"in common with others", gpu0, "nvidia-container-runtime", true, true},
		{"no claim", gpu0, "runc", false, false},
	} {
		t.Run(test.description, func(t *testing.T) {
			p := newPods(t)
			dir := p.ledger.Dir(id)
			if test.claimed {
				claim := ledger.Claim{
					ContainerID: id, Owner: ledger.OwnerNRI, PodUID: "u", PodName: "p", PodNamespace: "default", Container: "main",
					Shares: []grant.Share{{UUID: gpu0, MemoryMiB: 1000, CorePercent: 10}},
				}
				if test.common {
					claim.ResourceClaims = []string{"uid.gpu"}
					claim = claim.Common()
					dir = p.ledger.Dir(claim.ContainerID)
				}
				_, err := p.ledger.Claim(context.Background(), claim, map[string]grant.GPU{gpu0: {UUID: gpu0, MemoryMiB: 40960, CorePercent: 100, Replicas: 10}}, func(string) error { return nil })
				require.NoError(t, err)
			}
			spec, output := p.create(t, "k8s.io", func(s *rspec.Spec) {
				s.Process.Env = append(s.Process.Env, "NVIDIA_VISIBLE_DEVICES="+test.visible)
				s.Mounts = append(s.Mounts, rspec.Mount{Destination: api.ContainerDir, Type: "bind", Source: limiter.FilesDir(dir), Options: []string{"bind", "ro"}})
			})
			require.Equal(t, test.want, p.ran, output)
			if test.claimed {
				require.Contains(t, spec.Process.Env, "NVIDIA_VISIBLE_DEVICES="+test.visible)
			} else {
				require.Contains(t, spec.Process.Env, "NVIDIA_VISIBLE_DEVICES=void")
			}
		})
	}
}
