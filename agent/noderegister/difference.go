package noderegister

import (
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
)

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
// handshake, which has two writers.
func difference(got metav1.ObjectMeta, wanted Metadata) changes {
	owned := ownedBy(got.ManagedFields, fieldManager)
	delete(owned.annotations, api.AnnotationHAMiHandshake)
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
