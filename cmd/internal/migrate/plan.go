package migrate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/docs"
	"github.com/gpuslice/gpuslice/scheduler/convert"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// Plan is what a migration does.
type Plan struct {
	From Source `json:"from"`
	// Release is the DaemonSet of the device plugin, as namespace/name, and Version that of its chart.
	Release string `json:"release,omitempty"`
	Version string `json:"version,omitempty"`
	// Values are for gpuslice's chart.
	Values map[string]any `json:"values"`
	// Notes are settings that the values do not have.
	Notes []string `json:"notes,omitempty"`
	// Refused are pods that could not be created again as they are.
	Refused []Refused `json:"refused,omitempty"`
	// Differences are those for users, of docs/MIGRATING.md.
	Differences []Difference `json:"differences"`
	Nodes       []Node       `json:"nodes"`
	// Gone: the release is uninstalled. Nodes that are being switched can be finished.
	Gone bool `json:"gone,omitempty"`
	// Problems prevent a switch of nodes.
	Problems []string `json:"problems,omitempty"`
	Commands []string `json:"commands"`
}

// Refused is a pod that gpuslice would refuse.
type Refused struct {
	Pod    string `json:"pod"`
	Reason string `json:"reason"`
}

// Difference is a row of docs/MIGRATING.md.
type Difference struct {
	Subject string `json:"subject"`
	// Before is what HAMi does, if the page has it.
	Before string `json:"before,omitempty"`
	Here   string `json:"here"`
	// Note is what is different about Here.
	Note string `json:"note,omitempty"`
}

// States of a node.
const (
	StateServed    = "served" // by what the cluster moves from
	StateSwitching = "switching"
	StateSwitched  = "switched"
	StateReturning = "returning"
	StateChanged   = "changed" // it was switched, and its labels are others now
	StateInvalid   = "invalid" // its record can't be read
	StateUnserved  = "unserved"
)

// Node is a node with GPUs.
type Node struct {
	Name  string `json:"name"`
	State string `json:"state"`
	// Unserved: neither device plugin runs on it.
	Unserved bool  `json:"unserved,omitempty"`
	GPUs     int   `json:"gpus"`
	Pods     []Pod `json:"pods,omitempty"`
}

// Pod is a pod with GPUs, which is evicted when its node is switched.
type Pod struct {
	Name string `json:"name"`
	// Recreated: it has a controller.
	Recreated bool `json:"recreated"`
}

// Switch is how nodes are switched.
type Switch struct {
	From     Source
	Old, New Daemon
	// Resources are those of the containers with GPUs, and Count is the one that the kubelet counts.
	Resources []string
	Count     string
	// Warnings are what else is to be done on the way back.
	Warnings []string
}

// Where are the namespaces in which objects are searched.
type Where struct {
	// Ours are those that gpuslice is trusted in.
	Ours []string
	// Theirs is HAMi's or gpu-manager's; empty: all.
	Theirs string
}

// Make makes the plan. The error is that nothing can be planned.
func Make(source Source, in *Inventory, where Where) (*Plan, error) {
	r, err := find(source, in, where.Theirs)
	if errors.As(err, &errGone{}) && slices.ContainsFunc(in.Nodes, func(n v1.Node) bool { return isRecorded(source, &n) }) {
		return gone(&r, in, where.Ours), nil
	}
	if err != nil {
		return nil, err
	}
	s, err := r.settings(in)
	if err != nil {
		return nil, err
	}
	p := &Plan{
		From: source, Release: r.plugin.Namespace + "/" + r.plugin.Name, Version: r.plugin.Labels[labelVersion],
		Values: s.values, Notes: s.notes, Differences: differences(source, s.flags),
	}
	resources := resourcesOf(&s.options.Names)
	w, problem := r.prepare(in, where.Ours, &s.options.Names, false)
	if w != nil {
		p.nodes(&r, in, w.Resources)
	} else {
		p.nodes(&r, in, resources)
	}
	p.refuse(in, s.options)
	p.waiting(&r, in, resources)
	if problem != nil {
		p.Problems = append(p.Problems, lines(problem)...)
	}
	p.Commands = commands(&r)
	return p, nil
}

func isRecorded(source Source, n *v1.Node) bool {
	record, _ := RecordOf(n)
	return record != nil && record.From == source
}

// gone is the plan after the release was uninstalled.
func gone(r *release, in *Inventory, namespaces []string) *Plan {
	p := &Plan{From: r.source, Gone: true, Values: map[string]any{}, Differences: []Difference{}, Commands: []string{
		fmt.Sprintf("kubectl gpuslice migrate %s --all", string(r.source)),
	}}
	w, err := r.finish(in, namespaces)
	if err != nil {
		p.Problems = append(p.Problems, lines(err)...)
		w = &Switch{}
	}
	p.nodes(r, in, w.Resources)
	return p
}

func (p *Plan) nodes(r *release, in *Inventory, resources []string) {
	for i := range in.Nodes {
		n, problems := node(r, &in.Nodes[i], in.Pods, resources)
		p.Problems = append(p.Problems, problems...)
		if n != nil {
			p.Nodes = append(p.Nodes, *n)
		}
	}
	slices.SortFunc(p.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
}

// Prepare returns how nodes are switched, or why they can't be. back: to what the cluster moves from.
func Prepare(source Source, in *Inventory, where Where, back bool) (*Switch, error) {
	r, err := find(source, in, where.Theirs)
	if errors.As(err, &errGone{}) && !back {
		return r.finish(in, where.Ours)
	}
	if err != nil {
		return nil, err
	}
	s, err := r.settings(in)
	if err != nil {
		return nil, err
	}
	return r.prepare(in, where.Ours, &s.options.Names, back)
}

// finish is how nodes are switched that had been begun before the release was uninstalled. Its names of resources are gpuslice's.
func (r *release) finish(in *Inventory, namespaces []string) (*Switch, error) {
	agent, err := ours(in, namespaces)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(checkAgent(agent), checkWebhook(in)); err != nil {
		return nil, err
	}
	names := request.DefaultOptions().Names
	if names.Count, _, err = in.offers(agent); err != nil {
		return nil, err
	}
	return r.how(agent, &names, names.Count), nil
}

// how is a switch between the names of what the cluster moves from and those of gpuslice, with its count of GPUs.
func (r *release) how(agent Daemon, names *request.Names, count string) *Switch {
	own := request.DefaultOptions().Names
	own.Count = count
	resources := slices.Concat(resourcesOf(names), resourcesOf(&own))
	slices.Sort(resources)
	w := &Switch{From: r.source, Old: r.daemon, New: agent, Resources: slices.Compact(resources), Count: names.Count}
	if r.source == Tencent {
		w.Count = names.VcudaCore
	}
	return w
}

func checkAgent(agent Daemon) error {
	if agent.Selector[api.LabelMigrated] == "true" {
		return nil
	}
	return fmt.Errorf("%s does not select its nodes by %s=true, and would run on others: set agent.nodeSelector as in --values", agent, api.LabelMigrated)
}

// checkWebhook is for the way to gpuslice: without its webhook new pods are not given to its scheduler.
func checkWebhook(in *Inventory) error {
	if webhookNamed(in, ourWebhook) != nil {
		return nil
	}
	return errors.New("gpuslice's webhook does not exist: upgrade gpuslice with webhook.enabled=true")
}

// checkOffer checks that the agents offer the resource that the pods request.
func (r *release) checkOffer(agent Daemon, names *request.Names, count, profile string) error {
	switch {
	case r.source == Tencent && profile != "tencent":
		return fmt.Errorf("%s has resource-profile %s, and would not offer %s: set agent.config.resource-profile=tencent", agent, profile, names.VcudaCore)
	case r.source == Tencent:
		return nil
	case profile != "hami":
		return fmt.Errorf("%s has resource-profile %s, and would not offer %s: remove agent.config.resource-profile", agent, profile, names.Count)
	case count != names.Count:
		return fmt.Errorf("%s offers %s, and HAMi's pods request %s: set resourceNames.count=%[3]s", agent, count, names.Count)
	}
	return nil
}

func (r *release) prepare(in *Inventory, namespaces []string, names *request.Names, back bool) (*Switch, error) {
	var errs []error
	agent, err := ours(in, namespaces)
	if err != nil {
		return nil, err
	}
	if r.daemon.Key, err = r.ownLabel(in, back); err != nil {
		errs = append(errs, err)
	}
	if err := checkAgent(agent); err != nil {
		errs = append(errs, err)
	}
	count, profile, err := in.offers(agent)
	if err != nil {
		return nil, err
	}
	w := r.how(agent, names, count)
	if back {
		w.Warnings = r.warnings(in, namespaces)
	} else {
		errs = append(errs, r.checkOffer(agent, names, count, profile))
		errs = append(errs, r.conflicts(in, namespaces)...)
	}
	return w, errors.Join(errs...)
}

// conflicts are the ways in which both systems, or none, would handle the same pods.
func (r *release) conflicts(in *Inventory, namespaces []string) (errs []error) {
	errs = append(errs, checkWebhook(in))
	if theirs, own := r.bothWebhooks(in); own != nil && theirs != nil {
		errs = append(errs, fmt.Errorf("HAMi's webhook (%s) and gpuslice's (%s) can both change the same pods: remove HAMi's (kubectl delete mutatingwebhookconfiguration %s), "+
			"or have webhook.namespaceSelector require a label that HAMi's namespaceSelector excludes", r.webhook.Name, own.Name, r.webhook.Name))
	}
	theirs := flags(r.extender())["scheduler-name"]
	for _, given := range webhookFlags(in, namespaces) {
		if theirs != "" && given["scheduler-name"] == theirs {
			errs = append(errs, fmt.Errorf("HAMi's scheduler and gpuslice's have the same name (%s): set scheduler.name", theirs))
		}
	}
	return errs
}

// bothWebhooks returns HAMi's webhook, and gpuslice's configuration unless none of its pods can be of a namespace of HAMi's.
// Labels of pods separate nothing: they are a tenant's, and gpuslice checks the pods in any case.
func (r *release) bothWebhooks(in *Inventory) (theirs *admissionv1.MutatingWebhook, own *admissionv1.MutatingWebhookConfiguration) {
	theirs = named(r.webhook, hamiWebhook)
	if own = webhookNamed(in, ourWebhook); own != nil && theirs != nil && disjoint(theirs.NamespaceSelector, named(own, ourWebhook).NamespaceSelector) {
		own = nil
	}
	return theirs, own
}

// webhookFlags are those of containers of gpuslice that name the scheduler.
func webhookFlags(in *Inventory, namespaces []string) (found []map[string]string) {
	for _, d := range in.Deployments {
		if d.Labels[labelName] != "gpuslice" || !slices.Contains(namespaces, d.Namespace) {
			continue
		}
		for i := range d.Spec.Template.Spec.Containers {
			if given := flags(&d.Spec.Template.Spec.Containers[i]); given["scheduler-name"] != "" {
				found = append(found, given)
			}
		}
	}
	return found
}

// warnings are what else is to be done so that pods get the GPUs of the nodes that go back.
func (r *release) warnings(in *Inventory, namespaces []string) (found []string) {
	theirs, own := r.bothWebhooks(in)
	if own != nil {
		text := fmt.Sprintf("gpuslice's webhook (%s) still gives new pods with GPUs to gpuslice's scheduler, so that they do not run on nodes that go back", own.Name)
		for _, given := range webhookFlags(in, namespaces) {
			if cmp.Or(given["foreign-schedulers"], "deny") == "deny" {
				text += ", and refuses pods that name another scheduler"
				break
			}
		}
		found = append(found, text+": first upgrade gpuslice with webhook.enabled=false")
	}
	if r.source == HAMi && theirs == nil {
		found = append(found, "HAMi's webhook does not exist: until it is created again, new pods get HAMi's GPUs only if they name its scheduler")
	}
	return append(found, fmt.Sprintf("gpuslice's policy for annotations refuses what %s writes to pods unless admission.writers of gpuslice's values has %s",
		r.source, strings.Join(r.writers(), " and ")))
}

func resourcesOf(n *request.Names) []string {
	all := []string{n.Count, n.Memory, n.MemoryPercentage, n.Cores, n.VcudaCore, n.VcudaMemory}
	return slices.DeleteFunc(all, func(name string) bool { return name == "" || name == "-" })
}

// node describes a node; nil: it has nothing to do with the migration.
func node(r *release, n *v1.Node, pods []v1.Pod, resources []string) (described *Node, problems []string) {
	record, err := RecordOf(n)
	if err != nil {
		problems = append(problems, err.Error())
	}
	moved := n.Labels[api.LabelMigrated] == "true"
	described = &Node{Name: n.Name, GPUs: gpus(r.source, n), Unserved: !moved && !r.daemon.Selects(n)}
	switch {
	case err != nil:
		described.State = StateInvalid
	case record != nil && record.From != r.source:
		return nil, nil
	case record == nil && r.daemon.Selects(n):
		described.State = StateServed
	case record == nil && described.Unserved && described.GPUs > 0:
		described.State = StateUnserved
		return described, nil
	case record == nil:
		return nil, nil
	case record.Back:
		described.State = StateReturning
	case !record.Done:
		described.State = StateSwitching
	case moved && !r.daemon.Selects(n):
		described.State = StateSwitched
	default:
		described.State = StateChanged
	}
	for i := range pods {
		p := &pods[i]
		if p.Spec.NodeName != n.Name || !Holds(p, resources) {
			continue
		}
		described.Pods = append(described.Pods, Pod{nameOf(p), metav1.GetControllerOf(p) != nil})
		if why := Stays(p); why != "" && described.State != StateSwitched {
			problems = append(problems, fmt.Sprintf("node %s: pod %s %s", n.Name, nameOf(p), why))
		}
	}
	slices.SortFunc(described.Pods, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
	return described, problems
}

func gpus(source Source, n *v1.Node) int {
	if source == Tencent {
		q := n.Status.Capacity[api.ResourceVcudaCore]
		return int(q.Value() / api.VcudaCores)
	}
	text := n.Annotations[api.AnnotationHAMiRegister]
	var list []json.RawMessage
	if json.Unmarshal([]byte(text), &list) == nil {
		return len(list)
	}
	return strings.Count(text, ":") // HAMi's format before 2.7
}

// refuse checks the pods of the cluster by the rules of gpuslice's webhook.
func (p *Plan) refuse(in *Inventory, o request.Options) {
	for i := range in.Pods {
		pod := &in.Pods[i]
		if convert.Ended(pod) {
			continue
		}
		if _, err := request.FromPod(convert.Pod(pod), o); err != nil {
			p.Refused = append(p.Refused, Refused{nameOf(pod), err.Error()})
		}
	}
	slices.SortFunc(p.Refused, func(a, b Refused) int { return cmp.Compare(a.Pod, b.Pod) })
}

// waiting notes pods and Deployments that only HAMi's scheduler would place.
func (p *Plan) waiting(r *release, in *Inventory, resources []string) {
	name := flags(r.extender())["scheduler-name"]
	if name == "" {
		return
	}
	var pods, workloads []string
	for i := range in.Pods {
		if pod := &in.Pods[i]; pod.Spec.NodeName == "" && pod.Spec.SchedulerName == name && Holds(pod, resources) {
			pods = append(pods, nameOf(pod))
		}
	}
	for _, w := range in.Workloads {
		if w.Spec.SchedulerName == name {
			workloads = append(workloads, w.String())
		}
	}
	if len(pods) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("pods that wait for %s stay with it: delete them after gpuslice is installed, and their controllers create them again (%s)", name, some(pods)))
	}
	if len(workloads) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("workloads name the scheduler %s, so that gpuslice refuses their pods: remove schedulerName (%s), in objects of other kinds too", name, some(workloads)))
	}
}

// commands are the steps, with the usual names.
func commands(r *release) []string {
	list := []string{
		fmt.Sprintf("kubectl gpuslice migrate %s --values > values.yaml", string(r.source)),
		"helm install gpuslice install/charts/gpuslice --namespace gpuslice-system --create-namespace --values values.yaml",
	}
	if r.webhook != nil {
		list = append(list,
			fmt.Sprintf("kubectl get mutatingwebhookconfiguration %[1]s -o yaml > %[1]s.yaml", r.webhook.Name),
			"kubectl delete mutatingwebhookconfiguration "+r.webhook.Name)
	}
	list = append(list, fmt.Sprintf("kubectl gpuslice migrate %s --node NODE, or --all; back: --undo", string(r.source)))
	if release := r.plugin.Annotations["meta.helm.sh/release-name"]; release != "" {
		return append(list, fmt.Sprintf("helm uninstall %s --namespace %s", release, r.plugin.Annotations["meta.helm.sh/release-namespace"]))
	}
	return append(list, fmt.Sprintf("kubectl delete daemonset %s --namespace %s", r.plugin.Name, r.plugin.Namespace))
}

var link = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)

// differences are rows of the tables of docs/MIGRATING.md. Those of gpu-manager's flags are only of flags that are set.
func differences(source Source, flags []string) (found []Difference) {
	for head, columns := range tables[source] {
		_, after, has := strings.Cut(docs.Migrating, "\n"+head+"\n")
		if !has {
			panic("docs/MIGRATING.md has no table " + head) // a test reads all tables
		}
		_, rows, _ := strings.Cut(after, "\n") // the line below the head
		for line := range strings.Lines(rows) {
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
			if !strings.HasPrefix(line, "|") {
				break
			}
			for i, cell := range cells {
				cells[i] = strings.ReplaceAll(link.ReplaceAllString(strings.Trim(cell, " |"), "$1"), "`", "")
			}
			if d := columns(cells); d.Subject != "" && (head != tableOfFlags || ofFlags(line, flags)) {
				found = append(found, d)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b Difference) int { return cmp.Compare(a.Subject, b.Subject) })
	return found
}

func ofFlags(row string, flags []string) bool {
	first, _, _ := strings.Cut(row, " | ")
	return slices.ContainsFunc(flags, func(flag string) bool { return strings.Contains(first, "`--"+flag+"`") })
}

// tableOfFlags is the head of the table of gpu-manager's flags.
const tableOfFlags = "| gpu-manager's | here |"

// tables are the tables of docs/MIGRATING.md, by their heads, and how their columns are read.
var tables = map[Source]map[string]func(cells []string) Difference{
	HAMi: {
		"| HAMi | here | different |":  noted,
		"| in the pod | HAMi | here |": func(c []string) Difference { return Difference{Subject: c[0], Before: c[1], Here: c[2]} },
	},
	Tencent: {
		"| gpu-manager | here | different |": noted,
		tableOfFlags:                         func(c []string) Difference { return Difference{Subject: c[0], Here: c[1]} },
	},
}

// noted reads a row that has a difference only if its last column has one.
func noted(c []string) Difference {
	if len(c) < 3 || c[2] == "" {
		return Difference{}
	}
	return Difference{Subject: c[0], Here: c[1], Note: c[2]}
}

// lines are the messages of joined errors.
func lines(err error) []string {
	if joined, is := err.(interface{ Unwrap() []error }); is {
		var all []string
		for _, one := range joined.Unwrap() {
			all = append(all, one.Error())
		}
		return all
	}
	return []string{err.Error()}
}

// LabelText is labels as people write them.
func LabelText(labels map[string]string) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, key+"="+labels[key])
	}
	return strings.Join(pairs, ",")
}

const maxNames = 5

func some(names []string) string {
	slices.Sort(names)
	if len(names) <= maxNames {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
}

// ToSwitch are the nodes that --all switches, or switches back, and those that it passes over, because an operator has decided
// something else for them. The error is that some can't be known.
func (p *Plan) ToSwitch(back bool) (nodes, passed []Node, err error) {
	for _, n := range p.Nodes {
		switch n.State {
		case StateInvalid:
			err = errors.Join(err, fmt.Errorf("node %s has an invalid annotation %s: remove it after you have checked the node's labels", n.Name, api.AnnotationMigration))
		case StateUnserved:
		case StateChanged:
			passed = append(passed, n)
		case StateReturning: // --undo continues
			if back {
				nodes = append(nodes, n)
			} else {
				passed = append(passed, n)
			}
		case StateServed:
			if !back {
				nodes = append(nodes, n)
			}
		case StateSwitched:
			if back {
				nodes = append(nodes, n)
			}
		default:
			nodes = append(nodes, n)
		}
	}
	return nodes, passed, err
}

// Node returns a node of the plan.
func (p *Plan) Node(name string) (Node, error) {
	for _, n := range p.Nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return Node{}, fmt.Errorf("node %s is unknown: it does not exist, or it is neither a node of %s nor one that was migrated from it", name, p.From)
}
