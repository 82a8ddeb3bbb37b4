// Package migrate decides how a cluster moves from HAMi or gpu-manager to gpuslice: the values for the chart, what will
// differ, and which nodes can be switched. It reads objects that were listed before, and changes nothing.
package migrate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/api"
)

// Source is what a cluster moves from.
type Source string

const (
	HAMi    Source = "hami"
	Tencent Source = "tencent"
)

func (s Source) String() string {
	if s == Tencent {
		return "gpu-manager"
	}
	return "HAMi"
}

// Inventory has the objects of a cluster.
type Inventory struct {
	DaemonSets  []appsv1.DaemonSet
	Deployments []appsv1.Deployment
	// Workloads have the templates of pods, those of DaemonSets and Deployments too.
	Workloads []Workload
	Webhooks  []admissionv1.MutatingWebhookConfiguration
	Nodes     []v1.Node
	Pods      []v1.Pod
	// ConfigMap reads one by its namespace and name.
	ConfigMap func(namespace, name string) (map[string]string, error)
}

// Workload is an object that creates pods.
type Workload struct {
	Kind, Namespace, Name string
	Labels                map[string]string
	Spec                  v1.PodSpec
}

// AddWorkload adds an object unless its controller is listed itself. The templates of other controllers are not known.
func (in *Inventory) AddWorkload(kind string, of metav1.Object, spec v1.PodSpec) {
	if !controlledBy(of, "apps/Deployment", "batch/CronJob") {
		in.Workloads = append(in.Workloads, Workload{kind, of.GetNamespace(), of.GetName(), of.GetLabels(), spec})
	}
}

// controlledBy reports whether the object's controller is of one of the kinds, as group/kind.
func controlledBy(of metav1.Object, kinds ...string) bool {
	owner := metav1.GetControllerOf(of)
	if owner == nil {
		return false
	}
	group, _, _ := strings.Cut(owner.APIVersion, "/")
	return slices.Contains(kinds, group+"/"+owner.Kind)
}

func (w Workload) String() string { return w.Kind + " " + w.Namespace + "/" + w.Name }

// Daemon is a DaemonSet that offers GPUs. The zero value with Of is one that is not installed any more.
type Daemon struct {
	// Of names the program, for messages.
	Of                   string
	Namespace, Name, UID string
	// Selector has the labels of its nodes.
	Selector map[string]string
	// Key is the label of Selector that belongs only to it: a node leaves it without this label, and keeps the others.
	Key string
}

func (d Daemon) String() string {
	if d.Name == "" {
		return d.Of
	}
	return fmt.Sprintf("%s's DaemonSet %s/%s", d.Of, d.Namespace, d.Name)
}

func daemon(of string, d *appsv1.DaemonSet) Daemon {
	return Daemon{Of: of, Namespace: d.Namespace, Name: d.Name, UID: string(d.UID), Selector: d.Spec.Template.Spec.NodeSelector}
}

// Selects reports whether the node has the labels.
func (d Daemon) Selects(n *v1.Node) bool { return d.Name != "" && len(d.Lacks(n)) == 0 }

// Lacks are the labels of the selector that the node does not have.
func (d Daemon) Lacks(n *v1.Node) map[string]string {
	lacks := map[string]string{}
	for key, value := range d.Selector {
		if on, has := n.Labels[key]; !has || on != value {
			lacks[key] = value
		}
	}
	return lacks
}

// For is d as the node comes back to it: the label that the node has lost can be another one than Key if d's selector, or what uses its
// labels, has changed.
func (d Daemon) For(n *v1.Node) Daemon {
	if lacks := slices.Collect(maps.Keys(d.Lacks(n))); len(lacks) == 1 && !ofProgram(lacks[0]) {
		d.Key = lacks[0]
	}
	return d
}

// Runs reports whether the pod is one of the DaemonSet's.
func (d Daemon) Runs(p *v1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	return owner != nil && d.UID != "" && string(owner.UID) == d.UID
}

// programs write labels with these prefixes, or with subdomains of them, and write them again after they are removed.
var programs = []string{
	"kubernetes.io", "k8s.io", "nvidia.com", "amazonaws.com", "google.com", "azure.com", "alibabacloud.com", "aliyun.com", "oraclecloud.com",
	"karpenter.sh", "openshift.io", "cattle.io", "rancher.io", "k3s.io", "rke2.io", "cilium.io", "projectcalico.org", "amd.com", "intel.com",
}

func ofProgram(key string) bool {
	prefix, _, has := strings.Cut(key, "/")
	return has && slices.ContainsFunc(programs, func(p string) bool { return prefix == p || strings.HasSuffix(prefix, "."+p) })
}

// ownLabel returns the first label of the release's nodes that no program writes and nothing outside of the release selects. On the way
// back the label is set, which takes nodes from nothing.
func (r *release) ownLabel(in *Inventory, back bool) (string, error) {
	var reasons []string
	for _, key := range slices.Sorted(maps.Keys(r.daemon.Selector)) {
		if key == api.LabelMigrated || ofProgram(key) {
			reasons = append(reasons, key+" is not "+r.source.String()+"'s own label")
			continue
		}
		users := r.users(in, key)
		if back || len(users) == 0 {
			return key, nil
		}
		reasons = append(reasons, key+" is used by "+some(users))
	}
	if len(reasons) == 0 {
		reasons = []string{"it has none"}
	}
	return "", fmt.Errorf("%s has no label of nodes that a node can lose (%s): add one to its nodeSelector (docs/MIGRATING.md)", r.daemon, strings.Join(reasons, "; "))
}

// users are the workloads and pods that are not of the release and select nodes by the label.
func (r *release) users(in *Inventory, key string) (found []string) {
	for _, w := range in.Workloads {
		if !r.owns(w.Namespace, w.Labels) && !(w.Kind == "DaemonSet" && w.Namespace == r.daemon.Namespace && w.Name == r.daemon.Name) && selectsBy(w.Spec, key) {
			found = append(found, w.String())
		}
	}
	for i := range in.Pods {
		p := &in.Pods[i]
		ofWorkload := controlledBy(p, "apps/ReplicaSet", "apps/StatefulSet", "apps/DaemonSet", "batch/Job")
		if !ofWorkload && !ended(p) && !r.owns(p.Namespace, p.Labels) && selectsBy(p.Spec, key) {
			found = append(found, "pod "+nameOf(p))
		}
	}
	return found
}

// owns reports whether an object is of the same release of helm.
func (r *release) owns(namespace string, labels map[string]string) bool {
	own := r.plugin.Labels[labelInstance]
	return own != "" && namespace == r.plugin.Namespace && labels[labelInstance] == own
}

func selectsBy(spec v1.PodSpec, key string) bool {
	if _, has := spec.NodeSelector[key]; has {
		return true
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return false
	}
	by := func(t v1.NodeSelectorTerm) bool {
		return slices.ContainsFunc(t.MatchExpressions, func(r v1.NodeSelectorRequirement) bool { return r.Key == key })
	}
	required := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	return required != nil && slices.ContainsFunc(required.NodeSelectorTerms, by)
}

// release is the installation of HAMi or gpu-manager.
type release struct {
	source    Source
	daemon    Daemon
	plugin    appsv1.DaemonSet
	scheduler *appsv1.Deployment
	// webhook is HAMi's; nil: none.
	webhook *admissionv1.MutatingWebhookConfiguration
}

const (
	labelComponent = "app.kubernetes.io/component"
	labelName      = "app.kubernetes.io/name"
	labelInstance  = "app.kubernetes.io/instance"
	labelVersion   = "app.kubernetes.io/version"
	hamiWebhook    = "vgpu.hami.io"
	ourWebhook     = "requests.gpuslice.io"
)

// errGone is that the cluster has no such release.
type errGone struct{ error }

// find finds the release; namespace: only in it, empty: in all. HAMi's objects have its chart's labels, gpu-manager's the names of its manifests.
func find(source Source, in *Inventory, namespace string) (r release, err error) {
	r.source = source
	r.daemon.Of = source.String()
	var found []appsv1.DaemonSet
	for _, d := range in.DaemonSets {
		if namespace != "" && d.Namespace != namespace {
			continue
		}
		if source == HAMi && d.Labels[labelComponent] == "hami-device-plugin" && container(d.Spec.Template.Spec, "nvidia-device-plugin") != nil ||
			source == Tencent && (d.Name == "gpu-manager-daemonset" || d.Spec.Template.Labels["name"] == "gpu-manager-ds") {
			found = append(found, d)
		}
	}
	switch len(found) {
	case 1:
		r.plugin, r.daemon = found[0], daemon(source.String(), &found[0])
	case 0:
		where := "no DaemonSet has the label " + labelComponent + "=hami-device-plugin and the program nvidia-device-plugin"
		if source == Tencent {
			where = "there is no DaemonSet gpu-manager-daemonset"
		}
		if namespace != "" { // it can be in another one
			return r, fmt.Errorf("%s is not found: %s in namespace %s: leave out --namespace to search all", source, where, namespace)
		}
		return r, errGone{fmt.Errorf("%s is not found: %s", source, where)}
	default:
		var names []string
		for _, d := range found {
			names = append(names, d.Namespace+"/"+d.Name)
		}
		return r, fmt.Errorf("%s is installed several times (DaemonSets %s): set --namespace", source, strings.Join(names, ", "))
	}
	for i, d := range in.Deployments {
		if d.Namespace != r.plugin.Namespace {
			continue // a tenant can write the same labels
		}
		theirs := source == HAMi && d.Labels[labelComponent] == "hami-scheduler" && d.Labels[labelInstance] == r.plugin.Labels[labelInstance] ||
			source == Tencent && slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(c v1.Container) bool {
				return strings.Contains(c.Image, "gpu-admission") || strings.Contains(c.Image, "gpu-quota-admission")
			})
		if theirs {
			r.scheduler = &in.Deployments[i]
		}
	}
	if source == HAMi {
		r.webhook = webhookNamed(in, hamiWebhook)
	}
	return r, nil
}

func webhookNamed(in *Inventory, name string) *admissionv1.MutatingWebhookConfiguration {
	for i, w := range in.Webhooks {
		if slices.ContainsFunc(w.Webhooks, func(w admissionv1.MutatingWebhook) bool { return w.Name == name }) {
			return &in.Webhooks[i]
		}
	}
	return nil
}

// container returns the container with a program; nil: none.
func container(spec v1.PodSpec, program string) *v1.Container {
	for i, c := range spec.Containers {
		if slices.Contains(c.Command, program) {
			return &spec.Containers[i]
		}
	}
	return nil
}

// flags are those of a container, by name.
func flags(c *v1.Container) map[string]string {
	found := map[string]string{}
	if c == nil {
		return found
	}
	words := slices.Concat(c.Command, c.Args)
	for _, e := range c.Env {
		if e.Name == "EXTRA_FLAGS" { // gpu-manager's
			words = append(words, strings.Fields(e.Value)...)
		}
	}
	for i, word := range words {
		name, is := strings.CutPrefix(word, "--")
		if !is {
			continue
		}
		name, value, assigned := strings.Cut(name, "=")
		if !assigned && i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") {
			value = words[i+1]
		}
		found[name] = value
	}
	return found
}

// configMap reads the ConfigMap of a volume of the pod; nil: there is no such volume.
func (in *Inventory) configMap(namespace string, spec v1.PodSpec, volume string) (map[string]string, error) {
	for _, v := range spec.Volumes {
		if v.Name == volume && v.ConfigMap != nil {
			return in.ConfigMap(namespace, v.ConfigMap.Name)
		}
	}
	return nil, nil
}

var errNotInstalled = errors.New("gpuslice is not installed")

// ours finds the agents' DaemonSet in the namespaces that are trusted.
func ours(in *Inventory, namespaces []string) (Daemon, error) {
	var found []Daemon
	for i, d := range in.DaemonSets {
		if d.Labels[labelName] == "gpuslice" && d.Labels[labelComponent] == "agent" && slices.Contains(namespaces, d.Namespace) {
			agent := daemon("gpuslice", &in.DaemonSets[i])
			agent.Key = api.LabelMigrated
			found = append(found, agent)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return Daemon{}, fmt.Errorf("%w in namespace %s: install it with the values of --values, or set --system-namespace", errNotInstalled, strings.Join(namespaces, ", "))
	}
	return Daemon{}, fmt.Errorf("several namespaces have gpuslice's agents (%s and %s): set --system-namespace", found[0].Namespace, found[1].Namespace)
}

// offers are the agent's count of GPUs, a resource, and its profile of resources.
func (in *Inventory) offers(agent Daemon) (count, profile string, err error) {
	given := map[string]string{"resource-name": api.ResourceGPU, "resource-profile": "hami"}
	for _, d := range in.DaemonSets {
		if d.Namespace != agent.Namespace || d.Name != agent.Name {
			continue
		}
		spec := d.Spec.Template.Spec
		files, err := in.configMap(d.Namespace, spec, "config")
		if err != nil {
			return "", "", err
		}
		var file map[string]any
		if err := yaml.Unmarshal([]byte(files["agent.yaml"]), &file); err != nil {
			return "", "", fmt.Errorf("read agent.yaml of %s: %w", agent, err)
		}
		for key := range given {
			if text, is := file[key].(string); is {
				given[key] = text
			}
		}
		for i := range spec.Containers { // they override the file
			flags := flags(&spec.Containers[i])
			for key, before := range given {
				given[key] = cmp.Or(flags[key], before)
			}
		}
	}
	return given["resource-name"], given["resource-profile"], nil
}

// Record is the state of a node's migration, a value of the annotation gpuslice.io/migration.
type Record struct {
	From Source `json:"from"`
	// Back: the node returns to From.
	Back bool `json:"back,omitempty"`
	// Cordoned: migrate has made the node unschedulable, not an operator.
	Cordoned bool `json:"cordoned,omitempty"`
	Done     bool `json:"done,omitempty"`
	// Call is of the call of migrate that changes the node; a later call takes the node over.
	Call string `json:"call,omitempty"`
}

// RecordOf returns the node's record; nil: none.
func RecordOf(n *v1.Node) (*Record, error) {
	text, has := n.Annotations[api.AnnotationMigration]
	if !has {
		return nil, nil
	}
	var r Record
	if err := json.Unmarshal([]byte(text), &r); err != nil || r.From != HAMi && r.From != Tencent {
		return nil, fmt.Errorf("node %s: the annotation %s is invalid (%q): remove it after you have checked the node's labels", n.Name, api.AnnotationMigration, text)
	}
	return &r, nil
}

// Holds reports whether the pod has, or gets, GPUs by one of the resources or a MIG instance.
func Holds(p *v1.Pod, resources []string) bool {
	if ended(p) {
		return false
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, list := range []v1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
			for name, q := range list {
				if !q.IsZero() && (slices.Contains(resources, string(name)) || strings.HasPrefix(string(name), api.ResourceMIGPrefix)) {
					return true
				}
			}
		}
	}
	return false
}

// Offered returns a resource with GPUs that the kubelet offers; empty: none.
func Offered(n *v1.Node, count string) string {
	for name, q := range n.Status.Allocatable {
		if !q.IsZero() && (string(name) == count || strings.HasPrefix(string(name), api.ResourceMIGPrefix)) {
			return string(name)
		}
	}
	return ""
}

// Stays returns why the node has the pod again after an eviction; empty: it does not.
func Stays(p *v1.Pod) string {
	if _, static := p.Annotations[v1.MirrorPodAnnotationKey]; static {
		return "is static: move its manifest away from the node"
	}
	if owner := metav1.GetControllerOf(p); owner != nil && owner.Kind == "DaemonSet" {
		return "is of DaemonSet " + owner.Name + ", which creates it on the node again: exclude the node there"
	}
	return ""
}

func ended(p *v1.Pod) bool {
	return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
}

func nameOf(p *v1.Pod) string { return p.Namespace + "/" + p.Name }
