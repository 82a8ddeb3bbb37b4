//go:build root

package chart

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/api"
)

// clusters returns the chart's files of values for kinds of clusters, by their names.
func clusters(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chartDir, "values-*.yaml"))
	require.NoError(t, err)
	found := map[string]string{}
	for _, file := range files {
		found[strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "values-"), ".yaml")] = file
	}
	return found
}

// Each file of values gives objects that Kubernetes reads, and docs/INSTALL.md lists it.
func TestValuesOfClusters(t *testing.T) {
	all := clusters(t)
	require.Len(t, all, 7)
	docs := page(t, "INSTALL.md")
	data, err := os.ReadFile(filepath.Join(chartDir, "Chart.yaml"))
	require.NoError(t, err)
	var chart struct{ AppVersion string }
	require.NoError(t, yaml.Unmarshal(data, &chart))
	for name, file := range all {
		t.Run(name, func(t *testing.T) {
			require.NotEmpty(t, objects(t, render(t, "gpus", file)))
			out, errs, err := helm(t, "lint", "--strict", "--kube-version", "1.36.3", "--values", file, chartDir)
			require.NoError(t, err, "%s%s", out, errs)
			require.Contains(t, docs, "`"+filepath.Base(file)+"`")
			// Each value is another than the default: `helm template` of the default and of the file differ.
			require.NotEqual(t, render(t, "gpus"), render(t, "gpus", file))
			// The image is that of `make image`: test/release compares.
			all := images(objects(t, render(t, "gpus", file)))
			require.NotEmpty(t, all)
			for _, image := range all {
				require.Equal(t, "gpuslice:"+chart.AppVersion, image)
			}
		})
	}
}

// images are those of all containers.
func images(found []runtime.Object) (all []string) {
	var pods []corev1.PodSpec
	for _, w := range workloads(found) {
		pods = append(pods, w.template.Spec)
	}
	if job := grantKeysJob(found); job != nil {
		pods = append(pods, job.Spec.Template.Spec)
	}
	for _, pod := range pods {
		for _, c := range append(slices.Clone(pod.InitContainers), pod.Containers...) {
			all = append(all, c.Image)
		}
	}
	return all
}

// runsOn reports whether the agents run on a node with these labels.
func runsOn(t *testing.T, pod corev1.PodSpec, labels map[string]string) bool {
	t.Helper()
	matches, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: pod}).Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: labels}})
	require.NoError(t, err)
	return matches
}

// Agents run on nodes with a GPU, so that `kubectl rollout status` ends in clusters with other nodes too.
func TestPlacement(t *testing.T) {
	const plugin = "nvidia.com/gpu.deploy.device-plugin"
	for _, tc := range []struct {
		description string
		values      []string
		labels      map[string]string
		want        bool
	}{
		{"a node without labels", nil, map[string]string{"kubernetes.io/os": "linux"}, false},
		{"NVIDIA's feature discovery", nil, map[string]string{"nvidia.com/gpu.present": "true"}, true},
		{"its label of a node without a GPU", nil, map[string]string{"nvidia.com/gpu.present": "false"}, false},
		{"Node Feature Discovery, of the operator", nil, map[string]string{"feature.node.kubernetes.io/pci-10de.present": "true"}, true},
		{"Node Feature Discovery, a display", nil, map[string]string{"feature.node.kubernetes.io/pci-0300_10de.present": "true"}, true},
		{"Node Feature Discovery, a 3D controller", nil, map[string]string{"feature.node.kubernetes.io/pci-0302_10de.present": "true"}, true},
		{"another vendor", nil, map[string]string{"feature.node.kubernetes.io/pci-0302_1002.present": "true"}, false},
		{"our label", nil, map[string]string{"gpuslice.io/has-gpu": "true"}, true},
		{"HAMi's label", []string{`agent.nodeSelector={"gpu":"on"}`}, map[string]string{"gpu": "on"}, true},
		{"not HAMi's label", []string{`agent.nodeSelector={"gpu":"on"}`}, map[string]string{"nvidia.com/gpu.present": "true"}, false},
		{"an affinity", []string{`agent.affinity={"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Exists"}]}]}}}`}, map[string]string{"a": ""}, true},
		{"the operator's device plugin", variants["gpu-operator"], map[string]string{"nvidia.com/gpu.present": "true", plugin: "true"}, false},
		{"the operator has not labelled it yet", variants["gpu-operator"], map[string]string{"nvidia.com/gpu.present": "true"}, false},
		{"the operator's device plugin is off", variants["gpu-operator"], map[string]string{"nvidia.com/gpu.present": "true", plugin: "false"}, true},
		{"off, but no GPU", variants["gpu-operator"], map[string]string{plugin: "false"}, false},
		{"the tests' node", []string{"../kube/values-simulated.yaml"}, map[string]string{"gpuslice.io/has-gpu": "true"}, true},
		{"the tests' node before that", []string{"../kube/values-simulated.yaml"}, map[string]string{"kubernetes.io/os": "linux"}, false},
	} {
		t.Run(tc.description, func(t *testing.T) {
			require.Equal(t, tc.want, runsOn(t, agentPod(t, tc.values...), tc.labels))
		})
	}
}

// The discovery has nothing of its node, and runs before there is an agent.
func TestDiscovery(t *testing.T) {
	for _, values := range [][]string{variants["discovery"], append(slices.Clone(variants["discovery"]), variants["placed"]...)} {
		found := false
		for _, w := range workloads(objects(t, render(t, "gpus", values...))) {
			if w.component() != "discovery" {
				continue
			}
			found = true
			pod := w.template.Spec
			require.Empty(t, pod.Volumes)
			require.Nil(t, pod.RuntimeClassName)
			require.False(t, pod.HostPID || pod.HostIPC || pod.HostNetwork)
			require.True(t, *pod.SecurityContext.RunAsNonRoot)
			require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type)
			require.Equal(t, []corev1.Capability{"ALL"}, pod.Containers[0].SecurityContext.Capabilities.Drop)
			require.True(t, runsOn(t, pod, map[string]string{"kubernetes.io/os": "linux"}), "also on nodes without a label")
			require.False(t, runsOn(t, pod, map[string]string{"kubernetes.io/os": "windows"}))
			require.Equal(t, agentPod(t, values...).Tolerations, pod.Tolerations)
			require.Equal(t, "true", w.template.Annotations[api.AnnotationTolerance])
			require.Equal(t, []string{"/usr/local/bin/gpuslice-agent", "discover"}, pod.Containers[0].Command)
		}
		require.True(t, found)
	}
	for _, values := range [][]string{nil, {`discovery.enabled=true`, `agent.enabled=false`}} {
		require.NotContains(t, render(t, "gpus", values...), "component: discovery", "%q", values)
	}
	_, errs, err := helm(t, "template", "gpuslice", chartDir, "--kube-version", "1.36.3", "--set", "discovery.enabled=true,gpuOperator.enabled=true")
	require.Error(t, err)
	require.Contains(t, errs, "the operator labels the nodes")
	_, errs, err = helm(t, "template", "gpuslice", chartDir, "--kube-version", "1.36.3", "--set", "discovery.enabled=true,openshift.enabled=true,agent.hostNetwork=true")
	require.Error(t, err)
	require.Contains(t, errs, "agent.hostNetwork=false")
}

// With NVIDIA's GPU operator its programs use GPUs without a grant, its RuntimeClass is its own, and agents wait for its toolkit.
func TestGPUOperator(t *testing.T) {
	values := []string{`gpuOperator={"enabled":true,"namespace":"nvidia"}`, `agent.config={"exempt-namespaces":["dcgm"]}`, `admission.privilegedPods="deny"`}
	found := objects(t, render(t, "gpus", values...))
	policy := false
	for _, o := range found {
		_, is := o.(*nodev1.RuntimeClass)
		require.False(t, is, "the operator owns it")
		if c, is := o.(*corev1.ConfigMap); is && c.Name == "gpuslice-agent" {
			var config map[string]any
			require.NoError(t, yaml.Unmarshal([]byte(c.Data["agent.yaml"]), &config))
			require.Equal(t, []any{"dcgm", "nvidia"}, config["exempt-namespaces"])
			require.EqualValues(t, 10, config["device-split-count"], "the others stay")
		}
		if p, is := o.(*admissionv1.ValidatingAdmissionPolicy); is && strings.Contains(p.Name, "privileged") {
			text, err := yaml.Marshal(p.Spec)
			require.NoError(t, err)
			require.Contains(t, string(text), "'nvidia'", "its driver and toolkit are privileged")
			policy = true
		}
	}
	require.True(t, policy)
	pod := agentPod(t, values...)
	require.Contains(t, pod.InitContainers[0].Args, "--exempt-namespaces=gpus,dcgm,nvidia")
	i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "toolkit-ready" })
	require.GreaterOrEqual(t, i, 0)
	require.Equal(t, "/run/nvidia/validations/toolkit-ready", pod.Volumes[i].HostPath.Path)
	require.Equal(t, corev1.HostPathFile, *pod.Volumes[i].HostPath.Type, "the kubelet waits for it")
	require.True(t, slices.ContainsFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.Name == "toolkit-ready" && m.ReadOnly
	}), "the kubelet ignores volumes without a mount")
	require.Equal(t, "nvidia", *pod.RuntimeClassName)
	require.Less(t, slices.IndexFunc(agentPod(t).Volumes, func(v corev1.Volume) bool { return v.Name == "toolkit-ready" }), 0)
}

// constraints are OpenShift's SecurityContextConstraints, with all of their fields.
type constraints struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Priority                        *int32                `json:"priority"`
	AllowPrivilegedContainer        bool                  `json:"allowPrivilegedContainer"`
	DefaultAddCapabilities          []corev1.Capability   `json:"defaultAddCapabilities"`
	RequiredDropCapabilities        []corev1.Capability   `json:"requiredDropCapabilities"`
	AllowedCapabilities             []corev1.Capability   `json:"allowedCapabilities"`
	AllowHostDirVolumePlugin        bool                  `json:"allowHostDirVolumePlugin"`
	Volumes                         []string              `json:"volumes"`
	AllowedFlexVolumes              []any                 `json:"allowedFlexVolumes"`
	AllowHostNetwork                bool                  `json:"allowHostNetwork"`
	AllowHostPorts                  bool                  `json:"allowHostPorts"`
	AllowHostPID                    bool                  `json:"allowHostPID"`
	AllowHostIPC                    bool                  `json:"allowHostIPC"`
	DefaultAllowPrivilegeEscalation *bool                 `json:"defaultAllowPrivilegeEscalation"`
	AllowPrivilegeEscalation        *bool                 `json:"allowPrivilegeEscalation"`
	SELinuxContext                  struct{ Type string } `json:"seLinuxContext"`
	RunAsUser                       struct{ Type string } `json:"runAsUser"`
	SupplementalGroups              struct{ Type string } `json:"supplementalGroups"`
	FSGroup                         struct{ Type string } `json:"fsGroup"`
	ReadOnlyRootFilesystem          bool                  `json:"readOnlyRootFilesystem"`
	Users                           []string              `json:"users"`
	Groups                          []string              `json:"groups"`
	SeccompProfiles                 []string              `json:"seccompProfiles"`
	AllowedUnsafeSysctls            []string              `json:"allowedUnsafeSysctls"`
	ForbiddenSysctls                []string              `json:"forbiddenSysctls"`
}

// OpenShift lets the agents have what they have, and no more; the other pods run as a user that is not root.
func TestOpenShift(t *testing.T) {
	for _, values := range [][]string{
		variants["openshift"], append(slices.Clone(variants["openshift"]), variants["privileged"]...),
		append(slices.Clone(variants["openshift"]), `discovery.enabled=true`),
		append(slices.Clone(variants["openshift"]), `agent.hostNetwork=true`, `agent.extraCapabilities=["IPC_LOCK"]`, `agent.config={"on-violation":"kill"}`),
	} {
		text := render(t, "gpus", values...)
		var scc constraints
		for _, d := range documents(text) {
			if strings.Contains(d, "security.openshift.io/") {
				require.NoError(t, yaml.UnmarshalStrict([]byte(d), &scc))
			}
		}
		pod := agentPod(t, values...)
		require.Equal(t, []string{"system:serviceaccount:gpus:" + pod.ServiceAccountName}, scc.Users)
		require.Empty(t, scc.Groups)
		require.Equal(t, pod.HostPID, scc.AllowHostPID)
		require.Equal(t, pod.HostNetwork, scc.AllowHostNetwork)
		require.False(t, scc.AllowHostIPC)
		privileged := pod.Containers[0].SecurityContext.Privileged != nil && *pod.Containers[0].SecurityContext.Privileged
		require.Equal(t, privileged, scc.AllowPrivilegedContainer)
		if added := pod.Containers[0].SecurityContext.Capabilities; added != nil {
			for _, c := range added.Add {
				require.Contains(t, scc.AllowedCapabilities, c)
			}
		}
		for _, v := range pod.Volumes {
			if v.HostPath != nil {
				require.True(t, scc.AllowHostDirVolumePlugin)
				require.Contains(t, scc.Volumes, "hostPath")
			}
		}
		bound := map[string]string{}
		for _, o := range objects(t, text) {
			if b, is := o.(*rbacv1.RoleBinding); is && strings.HasSuffix(b.Name, "-nonroot") {
				bound[b.Subjects[0].Name] = b.RoleRef.Name
			}
		}
		const nonroot = "system:openshift:scc:nonroot-v2"
		want := map[string]string{"gpuslice-scheduler": nonroot, "gpuslice-webhook": nonroot, "gpuslice-grant-keys": nonroot}
		if slices.Contains(values, `discovery.enabled=true`) {
			want["gpuslice-discovery"] = nonroot
		}
		require.Equal(t, want, bound)
	}
	for _, set := range []string{`scheduler.hostNetwork=true`, `webhook.hostNetwork=true`, `scheduler.mode="extender"`} {
		_, errs, err := helm(t, "template", "gpuslice", chartDir, "--kube-version", "1.36.3", "--set-json", "openshift.enabled=true", "--set-json", set)
		require.Error(t, err)
		require.Contains(t, errs, "scheduler.mode=plugin")
	}
}

// Where nothing may connect by default, each pod can call the API server, and with Cilium the API server's proxy comes in.
func TestNetworkPolicies(t *testing.T) {
	for _, file := range []string{clusters(t)["network-policies"], clusters(t)["cilium"]} {
		text := render(t, "gpus", file)
		found := objects(t, text)
		sends := map[string]bool{}
		for _, o := range found {
			if p, is := o.(*networkingv1.NetworkPolicy); is {
				require.Equal(t, []networkingv1.PolicyType{"Ingress", "Egress"}, p.Spec.PolicyTypes)
				require.Equal(t, []networkingv1.NetworkPolicyEgressRule{{}}, p.Spec.Egress)
				sends[p.Spec.PodSelector.MatchLabels["app.kubernetes.io/component"]] = true
			}
		}
		require.Equal(t, map[string]bool{"agent": true, "scheduler": true, "webhook": true, "keys": true}, sends)
		ports := map[string][]string{}
		for _, d := range documents(text) {
			if !strings.Contains(d, "cilium.io/v2") {
				continue
			}
			var policy struct {
				Kind string
				Spec struct {
					EndpointSelector metav1.LabelSelector
					Ingress          []struct {
						FromEntities []string
						ToPorts      []struct {
							Ports []struct{ Port, Protocol string }
						}
					}
				}
			}
			require.NoError(t, yaml.Unmarshal([]byte(d), &policy))
			require.Equal(t, "CiliumNetworkPolicy", policy.Kind)
			require.Equal(t, []string{"kube-apiserver"}, policy.Spec.Ingress[0].FromEntities)
			component := policy.Spec.EndpointSelector.MatchLabels["app.kubernetes.io/component"]
			for _, p := range policy.Spec.Ingress[0].ToPorts[0].Ports {
				ports[component] = append(ports[component], p.Port)
			}
		}
		if strings.Contains(file, "cilium") {
			require.Equal(t, map[string][]string{"agent": {"9394"}, "scheduler": {"10259", "10261"}}, ports)
		} else {
			require.Empty(t, ports)
		}
	}
	for _, o := range objects(t, render(t, "gpus", variants["monitored"]...)) {
		if p, is := o.(*networkingv1.NetworkPolicy); is {
			require.Equal(t, []networkingv1.PolicyType{"Ingress"}, p.Spec.PolicyTypes, "what pods send is not restricted")
		}
	}
}

// On OpenShift the operator's RuntimeClass is set on pods with GPUs, and nothing is installed for containerd.
func TestValuesForOpenShift(t *testing.T) {
	file := clusters(t)["openshift"]
	set := map[string]string{}
	for _, w := range workloads(objects(t, render(t, "gpus", file))) {
		for _, arg := range w.template.Spec.Containers[0].Args {
			if name, value, is := strings.Cut(arg, "="); is && w.component() == "webhook" {
				set[name] = value
			}
		}
	}
	require.Equal(t, "nvidia", set["--runtime-class"])
	pod := agentPod(t, file)
	require.Empty(t, pod.InitContainers)
	require.Equal(t, &corev1.SELinuxOptions{Type: "spc_t", Level: "s0"}, pod.SecurityContext.SELinuxOptions)
}

// k3s and RKE2 have containerd's configuration elsewhere, and their own RuntimeClass.
func TestRancher(t *testing.T) {
	for name, dir := range map[string]string{"k3s": "/var/lib/rancher/k3s/agent/etc/containerd", "rke2": "/var/lib/rancher/rke2/agent/etc/containerd"} {
		file := clusters(t)[name]
		require.Contains(t, agentPod(t, file).InitContainers[0].Args, "--config="+dir+"/config.toml")
		for _, o := range objects(t, render(t, "gpus", file)) {
			_, is := o.(*nodev1.RuntimeClass)
			require.False(t, is)
		}
	}
}

// No object needs cert-manager, and only the agent's pods need more than Pod Security's restricted.
func TestRestrictedAndWithoutCertManager(t *testing.T) {
	text := render(t, "gpus")
	require.NotContains(t, text, "cert-manager")
	for _, w := range workloads(objects(t, text)) {
		pod := w.template.Spec
		if w.component() == "agent" {
			continue
		}
		pods := []corev1.PodSpec{pod, grantKeysJob(objects(t, text)).Spec.Template.Spec}
		for _, pod := range pods {
			require.True(t, *pod.SecurityContext.RunAsNonRoot)
			require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type)
			require.False(t, pod.HostNetwork || pod.HostPID || pod.HostIPC)
			for _, v := range pod.Volumes {
				require.True(t, v.ConfigMap != nil || v.Secret != nil || v.EmptyDir != nil || v.Projected != nil, v.Name)
			}
			for _, c := range append(slices.Clone(pod.Containers), pod.InitContainers...) {
				require.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
				require.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop)
				require.Empty(t, c.SecurityContext.Capabilities.Add)
				for _, p := range c.Ports {
					require.Zero(t, p.HostPort)
				}
			}
		}
	}
}
