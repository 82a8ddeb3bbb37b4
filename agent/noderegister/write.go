package noderegister

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
)

func (p *Publisher) write(ctx context.Context, leaving bool) error {
	got, err := p.cfg.Client.Get(ctx, p.cfg.NodeName)
	if err != nil {
		return fmt.Errorf("read the node: %w", err)
	}
	p.setLabels(got.Labels)
	if !leaving {
		node, known := p.cfg.Node()
		if !known {
			return nil
		}
		p.last, p.known = node, true
	}
	err = p.writeMetadata(ctx, got, leaving)
	if leaving {
		return err
	}
	return errors.Join(err, p.writeCapacity(ctx, got.UID), p.writeConditions(ctx, got.UID)) // schedulers need the annotations, and do without the rest
}

func (p *Publisher) writeMetadata(ctx context.Context, got *metav1.PartialObjectMetadata, leaving bool) error {
	wanted := Render(leavingNode(p.last, leaving), p.cfg.Options)
	if leaving {
		// HAMi's annotation stays, as unhealthy: the oldest schedulers would keep the devices
		// without it. Ours are removed: another agent may register the node after this one.
		delete(wanted.Annotations, api.AnnotationNodeGPUs)
		delete(wanted.Annotations, api.AnnotationNodeRefused)
	}
	diff := difference(got.ObjectMeta, wanted)
	for _, h := range handshakes {
		if !h.used(p.cfg.Options) {
			continue
		}
		if answer, write := h.answer(got.Annotations[h.key], wanted, leaving, time.Now()); write {
			diff.Annotations[h.key] = &answer
		}
	}
	if _, locked := got.Annotations[api.AnnotationHAMiLock]; locked && p.cfg.Options.HAMiGrants {
		diff.Annotations[api.AnnotationHAMiLock] = nil // the agent knows a pod by its annotations, so no two are confused
	}
	if diff.empty() {
		return nil
	}
	after, err := p.cfg.Client.Patch(ctx, p.cfg.NodeName, diff.patch())
	if err != nil {
		return fmt.Errorf("write to the node: %w", err)
	}
	p.setLabels(after.Labels)
	p.cfg.Log.Info("node annotations updated", "node", p.cfg.NodeName,
		"annotations", slices.Sorted(maps.Keys(diff.Annotations)), "labels", slices.Sorted(maps.Keys(diff.Labels)))
	return nil
}

func leavingNode(n Node, leaving bool) Node {
	if leaving {
		n.Devices = slices.Clone(n.Devices)
		for i := range n.Devices {
			n.Devices[i].Healthy = false
		}
	}
	return n
}

type changes struct {
	Labels      map[string]*string `json:"labels,omitempty"`
	Annotations map[string]*string `json:"annotations,omitempty"`
}

func (c changes) empty() bool { return len(c.Labels) == 0 && len(c.Annotations) == 0 }

// patch is a JSON merge patch without uid and resource version: only this agent writes these keys,
// so other writers are no conflict.
func (c changes) patch() []byte {
	data, err := json.Marshal(map[string]changes{"metadata": c})
	if err != nil {
		panic(err)
	}
	return data
}

// difference returns the changes from got to wanted. It keeps keys of other writers, and the
// handshakes, which have two writers.
func difference(got metav1.ObjectMeta, wanted Metadata) changes {
	owned := ownedBy(got.ManagedFields, FieldManager)
	for _, h := range handshakes {
		delete(owned.annotations, h.key)
	}
	for _, key := range api.NVIDIALabels { // feature discovery's are its own
		_, there := got.Labels[key]
		if _, ours := owned.labels[key]; there && !ours {
			delete(wanted.Labels, key)
		}
	}
	return changes{
		Labels:      differ(got.Labels, wanted.Labels, owned.labels),
		Annotations: differ(got.Annotations, wanted.Annotations, owned.annotations),
	}
}

func differ(got, wanted map[string]string, owned map[string]struct{}) map[string]*string {
	diff := map[string]*string{}
	for key, value := range wanted {
		if now, there := got[key]; !there || now != value {
			diff[key] = &value
		}
	}
	for key := range got {
		_, ours := owned[key]
		if _, keep := wanted[key]; ours && !keep {
			diff[key] = nil
		}
	}
	return diff
}

type keys struct{ labels, annotations map[string]struct{} }

// ownedBy returns the keys of which the manager is the last writer (managedFields). This includes
// keys of older versions of the agent.
func ownedBy(fields []metav1.ManagedFieldsEntry, manager string) keys {
	owned := keys{map[string]struct{}{}, map[string]struct{}{}}
	for _, entry := range fields {
		if entry.Manager != manager || entry.Subresource != "" || entry.FieldsV1 == nil {
			continue
		}
		var set struct {
			Metadata struct {
				Labels      map[string]struct{} `json:"f:labels"`
				Annotations map[string]struct{} `json:"f:annotations"`
			} `json:"f:metadata"`
		}
		if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &set); err != nil {
			continue
		}
		addNames(owned.labels, set.Metadata.Labels)
		addNames(owned.annotations, set.Metadata.Annotations)
	}
	return owned
}

// addNames skips ".", the map itself.
func addNames(to, fields map[string]struct{}) {
	for field := range fields {
		if name, ok := strings.CutPrefix(field, "f:"); ok {
			to[name] = struct{}{}
		}
	}
}

// Prefixes of the handshake. A time follows, in time.DateTime without a zone. Schedulers read only
// their own.
const (
	requesting = "Requesting"
	deleted    = "Deleted"
	reported   = "Reported"
)

// overdue is an unanswered old request: schedulers that use the handshake remove the node's devices
// at their next check. ("Deleted" would mean that they are already removed.)
const overdue = requesting + "_1970-01-01 00:00:00"

// handshake is an annotation with a scheduler's requests for a sign of life, and the agent's answers.
type handshake struct {
	key      string
	register string // the annotation with the devices
	// begins: the scheduler ignores the devices until the agent has written the first answer.
	begins bool
	used   func(Options) bool
}

var handshakes = []handshake{
	{api.AnnotationHAMiHandshake, api.AnnotationHAMiRegister, false, func(o Options) bool { return !o.IgnoreHandshake }},
	{api.AnnotationVolcanoHandshake, api.AnnotationVolcanoRegister, true, func(o Options) bool { return o.Volcano }},
}

// answer returns the new value of the handshake, if it changes. Without devices, and when the agent stops, a
// request stays open, so that schedulers remove the devices.
func (h handshake) answer(current string, devices Metadata, leaving bool, now time.Time) (value string, write bool) {
	if current == "" && (leaving || !h.begins) {
		return "", false
	}
	asked := strings.HasPrefix(current, requesting)
	dropped := strings.HasPrefix(current, deleted)
	switch {
	case leaving:
		return overdue, !dropped && current != overdue
	case devices.Annotations[h.register] == "":
		return "", false
	default:
		return reported + "_" + now.Format(time.DateTime), asked || dropped || current == ""
	}
}

// Remove deletes all labels and annotations of which the agent is the last writer, and returns
// their number.
func Remove(ctx context.Context, client Client, node string) (removed int, err error) {
	got, err := client.Get(ctx, node)
	if err != nil {
		return 0, fmt.Errorf("read the node: %w", err)
	}
	owned := ownedBy(got.ManagedFields, FieldManager)
	diff := changes{
		Labels:      differ(got.Labels, nil, owned.labels),
		Annotations: differ(got.Annotations, nil, owned.annotations),
	}
	if diff.empty() {
		return 0, nil
	}
	if _, err := client.Patch(ctx, node, diff.patch()); err != nil {
		return 0, fmt.Errorf("write to the node: %w", err)
	}
	return len(diff.Labels) + len(diff.Annotations), nil
}
