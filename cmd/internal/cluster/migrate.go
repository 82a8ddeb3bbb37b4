package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/migrate"
)

// Inventory reads what a migration is planned by.
func (c *Cluster) Inventory(ctx context.Context) (*migrate.Inventory, error) {
	var in migrate.Inventory
	all := metav1.ListOptions{}
	daemons, err := c.client.AppsV1().DaemonSets(metav1.NamespaceAll).List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("list the cluster's DaemonSets: %w", err)
	}
	for i := range daemons.Items {
		in.AddWorkload("DaemonSet", &daemons.Items[i], daemons.Items[i].Spec.Template.Spec)
	}
	deployments, err := c.client.AppsV1().Deployments(metav1.NamespaceAll).List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("list the cluster's Deployments: %w", err)
	}
	for i := range deployments.Items {
		in.AddWorkload("Deployment", &deployments.Items[i], deployments.Items[i].Spec.Template.Spec)
	}
	sets, err := c.client.AppsV1().StatefulSets(metav1.NamespaceAll).List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("list the cluster's StatefulSets: %w", err)
	}
	for i := range sets.Items {
		in.AddWorkload("StatefulSet", &sets.Items[i], sets.Items[i].Spec.Template.Spec)
	}
	replicas, err := c.client.AppsV1().ReplicaSets(metav1.NamespaceAll).List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("list the cluster's ReplicaSets: %w", err)
	}
	for i := range replicas.Items {
		in.AddWorkload("ReplicaSet", &replicas.Items[i], replicas.Items[i].Spec.Template.Spec)
	}
	jobs, err := c.client.BatchV1().Jobs(metav1.NamespaceAll).List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("list the cluster's Jobs: %w", err)
	}
	for i := range jobs.Items {
		if !hasEnded(&jobs.Items[i]) {
			in.AddWorkload("Job", &jobs.Items[i], jobs.Items[i].Spec.Template.Spec)
		}
	}
	crons, err := c.client.BatchV1().CronJobs(metav1.NamespaceAll).List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("list the cluster's CronJobs: %w", err)
	}
	for i := range crons.Items {
		in.AddWorkload("CronJob", &crons.Items[i], crons.Items[i].Spec.JobTemplate.Spec.Template.Spec)
	}
	webhooks, err := c.client.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("list the cluster's MutatingWebhookConfigurations: %w", err)
	}
	nodes, err := c.client.CoreV1().Nodes().List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("list the cluster's nodes: %w", err)
	}
	pods, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("list the cluster's pods: %w", err)
	}
	in.DaemonSets, in.Deployments, in.Webhooks, in.Nodes, in.Pods = daemons.Items, deployments.Items, webhooks.Items, nodes.Items, pods.Items
	in.ConfigMap = func(namespace, name string) (map[string]string, error) {
		m, err := c.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("ConfigMap %s/%s: %w", namespace, name, err)
		}
		return m.Data, nil
	}
	return &in, nil
}

func hasEnded(j *batchv1.Job) bool {
	return j.Status.CompletionTime != nil || slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobFailed || c.Type == batchv1.JobComplete) && c.Status == v1.ConditionTrue
	})
}

// SystemNamespaces are those in which gpuslice's own objects are trusted.
func (c *Cluster) SystemNamespaces() []string {
	if c.systemNamespace != "" {
		return []string{c.systemNamespace}
	}
	return UsualNamespaces
}

// Switch moves a node from one system to the other, or back. Each step is safe to repeat: a call continues what an earlier one has
// begun. If it fails, the node stays cordoned.
func (c *Cluster) Switch(ctx context.Context, node string, w *migrate.Switch, back bool, how Evictions) error {
	n, err := c.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("node %s: %w", node, err)
	}
	record, err := migrate.RecordOf(n)
	if err != nil {
		return err
	}
	x := &exchange{Cluster: c, node: node, call: rand.Text(), back: back, w: w, how: how, leave: w.Old, join: w.New}
	if back {
		x.leave, x.join = w.New, w.Old.For(n)
	}
	lacks := x.join.Lacks(n)
	delete(lacks, x.join.Key)
	switch {
	case record != nil && record.From != w.From:
		return fmt.Errorf("node %s is migrated from %s: use kubectl gpuslice migrate %s", node, record.From, string(record.From))
	case record == nil && back:
		return fmt.Errorf("node %s is not migrated: it has no annotation %s", node, api.AnnotationMigration)
	case record == nil && w.Old.Name == "":
		return fmt.Errorf("node %s has not begun to be switched, and %s is not installed any more: kubectl label node %s %s=true", node, w.From, node, api.LabelMigrated)
	case record == nil && !w.Old.Selects(n):
		return fmt.Errorf("node %s is not one of %s: it does not have its labels", node, w.Old)
	case len(lacks) > 0:
		return fmt.Errorf("node %s does not have all labels of %s: set %s first", node, x.join, migrate.LabelText(lacks))
	case record != nil && record.Done && !back && w.New.Selects(n) && !w.Old.Selects(n): // an operator can have changed the labels since
		how.Report("node %s is switched already", node)
		return nil
	}
	if !x.joined(n) {
		if _, err := x.holders(ctx); err != nil {
			return err
		}
	}
	if err := x.run(ctx); err != nil {
		next := "the same command continues"
		if !back {
			next += ", and --undo goes back"
		}
		return fmt.Errorf("%s: %s: %w", x.left(ctx), next, err)
	}
	return nil
}

// exchange is a call of Switch.
type exchange struct {
	*Cluster
	node string
	// call is in the node's record while no other call has taken the node over.
	call        string
	back        bool
	w           *migrate.Switch
	leave, join migrate.Daemon
	how         Evictions
}

// left reports how a failure leaves the node.
func (x *exchange) left(ctx context.Context) string {
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), responseTimeout)
	defer cancel()
	n, err := x.client.CoreV1().Nodes().Get(look, x.node, metav1.GetOptions{})
	if err != nil {
		return "node " + x.node + " may be cordoned"
	}
	text := "node " + x.node
	if n.Spec.Unschedulable {
		text += " is cordoned"
	} else {
		text += " is not cordoned"
	}
	if !x.w.Old.Selects(n) && !x.w.New.Selects(n) {
		text += ", and has no device plugin"
	}
	return text
}

// joined reports whether nothing is to be evicted: pods of the other system are on a node only until it is labelled for this one.
func (x *exchange) joined(n *v1.Node) bool { return x.join.Selects(n) && !x.leave.Selects(n) }

func (x *exchange) run(ctx context.Context) error {
	joined := false
	err := x.changeNode(ctx, x.node, func(n *v1.Node) (map[string]any, error) {
		joined = x.joined(n)
		record, err := migrate.RecordOf(n)
		if err != nil {
			return nil, err
		}
		if record == nil {
			record = &migrate.Record{From: x.w.From}
		}
		cordoned := record.Cordoned || !n.Spec.Unschedulable
		return patchOf(&migrate.Record{From: x.w.From, Back: x.back, Cordoned: cordoned, Call: x.call}, map[string]any{"unschedulable": true})
	})
	if err != nil {
		return err
	}
	x.how.Report("node %s is cordoned", x.node)
	if !joined {
		if err := x.clear(ctx); err != nil {
			return err
		}
		if err := x.label(ctx, x.join, true); err != nil {
			return err
		}
		x.how.Report("node %s has the label of %s", x.node, x.join)
	}
	if err := x.waitOffered(ctx); err != nil {
		return err
	}
	err = x.changeNode(ctx, x.node, func(n *v1.Node) (map[string]any, error) {
		record, err := x.own(n)
		if err != nil {
			return nil, err
		}
		var spec map[string]any
		if record.Cordoned {
			spec = map[string]any{"unschedulable": nil}
		}
		if x.back {
			return patchOf(nil, spec)
		}
		return patchOf(&migrate.Record{From: x.w.From, Done: true}, spec)
	})
	if err == nil {
		x.how.Report("node %s is %s's", x.node, x.join.Of)
	}
	return err
}

var errTaken = errors.New("another call of migrate has taken the node over, or its annotation was removed")

// own returns the record if it is this call's.
func (x *exchange) own(n *v1.Node) (*migrate.Record, error) {
	record, err := migrate.RecordOf(n)
	if err != nil {
		return nil, err
	}
	if record == nil || record.Call != x.call {
		return nil, errTaken
	}
	return record, nil
}

// clear frees a node of the pods with GPUs and of the program that offers them. Pods that were bound before the scheduler knew the
// cordon are found when the program is gone.
func (x *exchange) clear(ctx context.Context) error {
	if err := x.empty(ctx); err != nil {
		return err
	}
	if err := x.label(ctx, x.leave, false); err != nil {
		return err
	}
	if err := x.until(ctx, "the pod of "+x.leave.String()+" is still on it", func(ctx context.Context, _ *v1.Node) (bool, error) {
		p, err := x.podOf(ctx, x.node, x.leave)
		return p == nil && err == nil, err
	}); err != nil {
		return err
	}
	if x.leave.Name != "" {
		x.how.Report("node %s is left by %s", x.node, x.leave)
	}
	// What the kubelet knows of the other device plugin's GPUs would look like the next one's.
	if err := x.until(ctx, "the kubelet still offers GPUs of a device plugin: is there a third one on the node?", func(_ context.Context, n *v1.Node) (bool, error) {
		return migrate.Offered(n, x.w.Count) == "", nil
	}); err != nil {
		return err
	}
	return x.empty(ctx)
}

// maxRounds bounds how often pods are evicted that come to the node although it is cordoned.
const maxRounds = 5

// empty evicts the pods with GPUs, also those that were bound to the node meanwhile.
func (x *exchange) empty(ctx context.Context) error {
	for round := 0; ; round++ {
		holders, err := x.holders(ctx)
		if err != nil || len(holders) == 0 {
			return err
		}
		// The node is this call's after the pods were listed: none of them is one that came after another call has switched it.
		n, err := x.client.CoreV1().Nodes().Get(ctx, x.node, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("node %s: %w", x.node, err)
		}
		if _, err := x.own(n); err != nil {
			return err
		}
		if round == maxRounds {
			return fmt.Errorf("pods with GPUs come again although the node is cordoned: %v: their controllers set nodeName or tolerate the cordon, or a scheduler ignores it", holders)
		}
		if err := x.Evict(ctx, holders, x.how); err != nil {
			return err
		}
		if !sleep(ctx, pollInterval) {
			return ctx.Err()
		}
	}
}

// holders are the pods to evict from the node. The error names those that an eviction would not remove.
func (x *exchange) holders(ctx context.Context) (holders []Holder, err error) {
	pods, err := x.podsOn(ctx, x.node)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		p := &pods[i]
		if !migrate.Holds(p, x.w.Resources) {
			continue
		}
		h := Holder{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)}
		if why := migrate.Stays(p); why != "" {
			err = errors.Join(err, fmt.Errorf("node %s: pod %s %s", x.node, h, why))
		}
		holders = append(holders, h)
	}
	return holders, err
}

// waitOffered waits until the node's pod of the DaemonSet is ready, and the kubelet offers its GPUs.
func (x *exchange) waitOffered(ctx context.Context) error {
	x.how.Report("waiting until %s offers the GPUs of node %s", x.join, x.node)
	return x.until(ctx, fmt.Sprintf("%s does not offer %s: see the log of its pod", x.join, x.w.Count), func(ctx context.Context, n *v1.Node) (bool, error) {
		if x.leave.Selects(n) {
			return false, errLabelled
		}
		p, err := x.podOf(ctx, x.node, x.join)
		return err == nil && p != nil && readiness(p) == 0 && migrate.Offered(n, x.w.Count) != "", err
	})
}

var errLabelled = errors.New("another program has set the label again that the node has lost: configure it so that it does not")

// until polls until ctx ends, or another call takes the node over. The API server may fail meanwhile. The error is what was missing, or
// its last failure.
func (x *exchange) until(ctx context.Context, missing string, done func(context.Context, *v1.Node) (bool, error)) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (is bool, err error) {
		n, err := x.client.CoreV1().Nodes().Get(ctx, x.node, metav1.GetOptions{})
		if err == nil {
			_, err = x.own(n)
		}
		if err == nil {
			is, err = done(ctx, n)
		}
		if ctx.Err() == nil {
			last = err
		}
		if apierrors.IsForbidden(err) || errors.Is(err, errTaken) || errors.Is(err, errLabelled) {
			return false, err
		}
		return is, nil
	})
	if err == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("%s: %w", missing, err), last)
}

func (c *Cluster) podsOn(ctx context.Context, node string) (on []v1.Pod, err error) {
	pods, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	return slices.DeleteFunc(pods.Items, func(p v1.Pod) bool { return p.Spec.NodeName != node }), nil
}

// podOf returns the node's pod of a DaemonSet, one that ends too; nil: there is none.
func (c *Cluster) podOf(ctx context.Context, node string, of migrate.Daemon) (*v1.Pod, error) {
	pods, err := c.podsOn(ctx, node)
	for i := range pods {
		if of.Runs(&pods[i]) {
			return &pods[i], nil
		}
	}
	return nil, err
}

// label has the DaemonSet select the node, or not, by its own label.
func (x *exchange) label(ctx context.Context, d migrate.Daemon, on bool) error {
	return x.changeNode(ctx, x.node, func(n *v1.Node) (map[string]any, error) {
		if _, err := x.own(n); err != nil || d.Selects(n) == on {
			return nil, err
		}
		var value any
		if on {
			value = d.Selector[d.Key]
		}
		return map[string]any{"metadata": map[string]any{"labels": map[string]any{d.Key: value}}}, nil
	})
}

// changeNode patches a node. patch is called again after a conflict; nil: there is nothing to change.
func (c *Cluster) changeNode(ctx context.Context, node string, patch func(*v1.Node) (map[string]any, error)) error {
	nodes := c.client.CoreV1().Nodes()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := nodes.Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change, err := patch(n)
		if err != nil || change == nil {
			return err
		}
		// The resource version makes a concurrent change a conflict.
		metadata, _ := change["metadata"].(map[string]any)
		metadata["resourceVersion"] = n.ResourceVersion
		text, err := json.Marshal(change)
		if err != nil {
			return err
		}
		_, err = nodes.Patch(ctx, node, types.MergePatchType, text, metav1.PatchOptions{FieldManager: "gpuslice"})
		return err
	})
	if err != nil {
		return fmt.Errorf("node %s: %w", node, err)
	}
	return nil
}

// patchOf is a patch of the record, nil: without one, and of the node's spec.
func patchOf(record *migrate.Record, spec map[string]any) (map[string]any, error) {
	annotations := map[string]any{api.AnnotationMigration: nil}
	if record != nil {
		text, err := json.Marshal(record)
		if err != nil {
			return nil, err
		}
		annotations[api.AnnotationMigration] = string(text)
	}
	patch := map[string]any{"metadata": map[string]any{"annotations": annotations}}
	if spec != nil {
		patch["spec"] = spec
	}
	return patch, nil
}
