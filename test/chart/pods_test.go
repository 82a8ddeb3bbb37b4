//go:build root

package chart

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// workload is what makes pods.
type workload struct {
	name     string
	selector map[string]string
	template corev1.PodTemplateSpec
}

func workloads(found []runtime.Object) (all []workload) {
	for _, o := range found {
		switch o := o.(type) {
		case *appsv1.Deployment:
			all = append(all, workload{o.Name, o.Spec.Selector.MatchLabels, o.Spec.Template})
		case *appsv1.DaemonSet:
			all = append(all, workload{o.Name, o.Spec.Selector.MatchLabels, o.Spec.Template})
		}
	}
	return all
}

func (w workload) component() string { return w.selector["app.kubernetes.io/component"] }

// Whatever is asked for, every container is held to the same.
func TestPods(t *testing.T) {
	for variant, values := range variants {
		t.Run(variant, func(t *testing.T) {
			all := workloads(objects(t, render(t, "gpus", values...)))
			require.NotEmpty(t, all)
			for _, w := range all {
				pod, agent := w.template.Spec, w.component() == "agent"
				require.Equal(t, agent, pod.HostPID, "%s: only the agent names processes by the host's PIDs", w.name)
				require.False(t, pod.HostIPC)
				require.NotEmpty(t, pod.PriorityClassName)
				require.NotEmpty(t, pod.ServiceAccountName)
				require.NotNil(t, pod.SecurityContext)
				if !agent {
					require.True(t, *pod.SecurityContext.RunAsNonRoot, w.name)
					require.EqualValues(t, 65532, *pod.SecurityContext.RunAsUser, w.name)
				}
				require.Len(t, pod.Containers, 1)
				c := pod.Containers[0]
				privileged := agent && variant == "privileged"
				require.Equal(t, privileged, c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged, w.name)
				if !privileged {
					require.NotNil(t, pod.SecurityContext.SeccompProfile, w.name)
					require.False(t, *c.SecurityContext.AllowPrivilegeEscalation, w.name)
					require.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop, w.name)
				}
				if !agent {
					require.Empty(t, c.SecurityContext.Capabilities.Add, w.name)
				}
				require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, w.name)
				if port := map[string]string{"agent": "metrics", "scheduler": "http"}[w.component()]; port != "" && variant != "small" {
					require.Contains(t, ports(w), port, "%s: gpuslice --all-nodes and explain ask there", w.name)
				}
				if w.component() != "discovery" { // it serves nothing, and ends if it can't do its work
					require.NotNil(t, c.LivenessProbe, w.name)
					require.NotNil(t, c.ReadinessProbe, w.name)
				}
				require.Contains(t, c.Resources.Limits, corev1.ResourceMemory, w.name)
				require.NotContains(t, c.Resources.Limits, corev1.ResourceCPU, "%s: a throttled container answers too late", w.name)
				for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
					require.Contains(t, c.Resources.Requests, r, w.name)
				}
				for _, v := range pod.Volumes {
					require.True(t, agent || v.HostPath == nil, "%s: %s is the host's", w.name, v.Name)
					if v.Secret != nil {
						require.Zero(t, *v.Secret.DefaultMode&0o037, "%s: %s can be read by others", w.name, v.Name)
					}
				}
				for _, m := range c.VolumeMounts {
					require.True(t, m.MountPropagation == nil || *m.MountPropagation == corev1.MountPropagationHostToContainer, "%s: Bidirectional needs privilege", w.name)
					i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
					require.GreaterOrEqual(t, i, 0, "%s mounts %s, which is no volume", w.name, m.Name)
				}
			}
		})
	}
}

// ports are the names of a workload's ports.
func ports(w workload) (names []string) {
	for _, p := range w.template.Spec.Containers[0].Ports {
		names = append(names, p.Name)
	}
	return names
}

// hostPaths are what the agent has of the host: whether it may write there, and why it needs it.
var hostPaths = map[string]struct {
	writes bool
	why    string
}{
	"/run/gpuslice":                   {true, "the ledger, and each container's limits and usage, mounted into it from there"},
	"/var/lib/gpuslice/lib":           {true, "the limiter, mounted into containers from there"},
	"/var/run/nri":                    {false, "the socket by which the runtime asks about every container"},
	"/var/lib/kubelet/device-plugins": {true, "the device plugin's socket is made there"},
	"/var/lib/kubelet/pod-resources":  {false, "the socket for the devices that the kubelet gave a pod"},
	"/etc/cdi":                        {false, "the CDI spec has what a GPU's container needs"},
	"/var/run/cdi":                    {false, "the same, made at boot"},
}

// capabilities are what the agent has of root's rights, by the variant that adds them.
var capabilities = map[string]map[corev1.Capability]string{
	"default": {
		"SYS_PTRACE":      "/proc/PID/maps and /proc/PID/root of other programs",
		"DAC_READ_SEARCH": "the same of containers with directories that are closed to others",
		"SYS_ADMIN":       "a file system for each container, mounted where the container runtime sees it; MIG devices",
		"SYS_CHROOT":      "setns into the container runtime's mount namespace",
	},
	"mig": {
		"KILL": "on-violation: kill",
	},
}

// agentPod returns the agent's pod of a release in the namespace "gpus".
func agentPod(t *testing.T, values ...string) corev1.PodSpec {
	for _, w := range workloads(objects(t, render(t, "gpus", values...))) {
		if w.component() == "agent" {
			return w.template.Spec
		}
	}
	require.Fail(t, "no agent")
	return corev1.PodSpec{}
}

// NVIDIA's runtime may ignore the variables of unprivileged containers, so the agent requests
// its GPUs by a volume mount too.
func TestAgentAsksForGPUsByMount(t *testing.T) {
	pod := agentPod(t)
	i := slices.IndexFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.MountPath == "/var/run/nvidia-container-devices/all"
	})
	require.GreaterOrEqual(t, i, 0)
	name := pod.Containers[0].VolumeMounts[i].Name
	j := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	require.Equal(t, "/dev/null", pod.Volumes[j].HostPath.Path)
}

// The init container that installs the barrier writes only these directories of the node and has
// no capability. It exempts the agent's namespace, and the agent's exempt namespaces.
func TestBarrierInstaller(t *testing.T) {
	require.Contains(t, agentPod(t, variants["exempt"]...).InitContainers[0].Args, "--exempt-namespaces=gpus,dcgm")
	pod := agentPod(t)
	require.Len(t, pod.InitContainers, 1)
	c := pod.InitContainers[0]
	require.Contains(t, c.Args, "--exempt-namespaces=gpus", "the agent's own pod gets its GPUs through the barrier")
	require.Contains(t, c.Args, "--require-nvidia", "a wrong containerdConfig is an error, not a barrier that does nothing")
	require.Contains(t, c.Args, "--config=/etc/containerd/config.toml")
	require.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop)
	require.Empty(t, c.SecurityContext.Capabilities.Add)
	require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, c.SecurityContext.SeccompProfile.Type, "with any profile of the agent")
	require.Nil(t, c.SecurityContext.Privileged)
	require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
	var mounts []string
	for _, m := range c.VolumeMounts {
		mounts = append(mounts, m.MountPath)
		i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		require.Equal(t, m.MountPath, "/host"+pod.Volumes[i].HostPath.Path)
	}
	require.ElementsMatch(t, []string{"/host/etc/containerd", "/host/etc/gpuslice", "/host/var/lib/gpuslice", "/host/var/lib/gpuslice/lib"}, mounts)
	// Each argument is an option of the program.
	text, err := os.ReadFile("../../docs/configuration/cli.md")
	require.NoError(t, err)
	for _, arg := range c.Args {
		flag, _, _ := strings.Cut(arg, "=")
		require.Regexp(t, "`"+flag+"[ `]", string(text))
	}
}

// If the agent doesn't use NVIDIA's container runtime, or the operator installs the barrier, the
// chart does not touch containerd's configuration.
func TestNoBarrierInstaller(t *testing.T) {
	for _, values := range [][]string{variants["no-barrier"], variants["privileged"], variants["agent-only"], {"../kube/values-simulated.yaml"}} {
		pod := agentPod(t, values...)
		require.Empty(t, pod.InitContainers, "%q", values)
		for _, v := range pod.Volumes {
			require.False(t, v.HostPath != nil && v.HostPath.Path == "/etc/containerd", "%q", values)
		}
	}
}

// The agent has access to nothing else of its node.
func TestAgentsReach(t *testing.T) {
	agent := func(values ...string) corev1.PodSpec { return agentPod(t, values...) }
	added := func(pod corev1.PodSpec) map[corev1.Capability]bool {
		all := map[corev1.Capability]bool{}
		for _, c := range pod.Containers[0].SecurityContext.Capabilities.Add {
			all[c] = true
		}
		return all
	}
	known := func(variants ...string) map[corev1.Capability]bool {
		all := map[corev1.Capability]bool{}
		for _, v := range variants {
			for c, why := range capabilities[v] {
				require.NotEmpty(t, why)
				all[c] = true
			}
		}
		return all
	}
	pod := agent()
	require.Equal(t, known("default"), added(pod))
	require.Equal(t, known("default", "mig"), added(agent(variants["mig"]...)))

	paths := map[string]bool{}
	for _, v := range pod.Volumes {
		if v.HostPath == nil {
			continue
		}
		if v.HostPath.Path == "/dev/null" {
			continue // TestAgentAsksForGPUsByMount
		}
		i := slices.IndexFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name })
		if i < 0 {
			continue // TestBarrierInstaller
		}
		m := pod.Containers[0].VolumeMounts[i]
		require.Equal(t, v.HostPath.Path, m.MountPath, "the runtime mounts from it into containers by the same path")
		require.NotEmpty(t, hostPaths[m.MountPath].why, m.MountPath)
		require.Equal(t, hostPaths[m.MountPath].writes, !m.ReadOnly, m.MountPath)
		paths[m.MountPath] = true
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(hostPaths)), slices.Collect(maps.Keys(paths)))
	require.Equal(t, "nvidia", *pod.RuntimeClassName)
	require.False(t, pod.HostNetwork)
}

// Every option that a container is started with is one of the program's; the reference is made from the code.
func TestArguments(t *testing.T) {
	known := map[string]string{}
	for component, file := range map[string]string{"agent": "agent.md", "discovery": "agent.md", "scheduler": "scheduler.md", "webhook": "scheduler.md"} {
		text, err := os.ReadFile("../../docs/configuration/" + file)
		require.NoError(t, err)
		known[component] = string(text)
	}
	ofKubeScheduler := []string{"config", "secure-port"}
	for variant, values := range variants {
		for _, w := range workloads(objects(t, render(t, "gpus", values...))) {
			for _, arg := range w.template.Spec.Containers[0].Args {
				flag, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
				if w.component() == "scheduler" && slices.Contains(ofKubeScheduler, flag) {
					continue
				}
				is := regexp.MustCompile("`--" + regexp.QuoteMeta(flag) + "[ `]").MatchString(known[w.component()])
				require.True(t, is, "%s: %s of %s is no option of it", variant, arg, w.name)
			}
		}
		if job := grantKeysJob(objects(t, render(t, "gpus", values...))); job != nil {
			_, options, found := strings.Cut(known["scheduler"], "## `gpuslice-scheduler grant-keys`")
			require.True(t, found)
			for _, arg := range job.Spec.Template.Spec.Containers[0].Args {
				flag, _, _ := strings.Cut(arg, "=")
				require.Contains(t, options, "`"+flag+" ", variant)
			}
		}
	}
}

// Only with memory-enforcement the agent has the host's control groups, by the path that the driver gets.
func TestAgentHasControlGroupsForNativeLimits(t *testing.T) {
	for _, tt := range []struct {
		set  string
		want bool
	}{
		{`agent.config={"memory-enforcement":"limiter"}`, false},
		{`agent.config={"memory-enforcement":"native+limiter"}`, true},
		{`agent.config={"memory-enforcement":"auto"}`, true},
	} {
		text := render(t, "gpus", tt.set)
		found := false
		for _, w := range workloads(objects(t, text)) {
			if w.component() != "agent" {
				continue
			}
			for _, m := range w.template.Spec.Containers[0].VolumeMounts {
				found = found || m.Name == "cgroups" && m.MountPath == "/sys/fs/cgroup" && !m.ReadOnly
			}
		}
		require.Equal(t, tt.want, found, tt.set)
	}
}
