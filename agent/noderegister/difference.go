package noderegister

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// changes are labels and annotations to be set, or removed where they are nil.
type changes struct {
	Labels      map[string]*string `json:"labels,omitempty"`
	Annotations map[string]*string `json:"annotations,omitempty"`
}

func (c changes) empty() bool { return len(c.Labels) == 0 && len(c.Annotations) == 0 }

// patch is a JSON merge patch. It has neither uid nor resource version: the keys are
// ours alone, so what others write at the same time is no conflict, and what is written
// doesn't depend on what was read but for what is left out.
func (c changes) patch() []byte {
	data, err := json.Marshal(map[string]changes{"metadata": c})
	if err != nil {
		panic(err) // strings by strings
	}
	return data
}

// difference is what makes got be as wanted. Keys that are not wanted and that others
// wrote stay; so does the handshake, which two write.
func difference(got metav1.ObjectMeta, wanted Metadata) changes {
	owned := ownedBy(got.ManagedFields, fieldManager)
	delete(owned.annotations, AnnotationHandshake)
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

// keys are names of labels and annotations.
type keys struct{ labels, annotations map[string]struct{} }

// ownedBy are the keys that the API server has a manager down for: those that it wrote
// and nobody has written since. The record survives our restarts, and knows of keys
// that an older version of us wrote.
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
			continue // the server's own record; without it nothing is removed
		}
		maps.Copy(owned.labels, names(set.Metadata.Labels))
		maps.Copy(owned.annotations, names(set.Metadata.Annotations))
	}
	return owned
}

// names are the names of "f:name" entries.
func names(set map[string]struct{}) map[string]struct{} {
	out := map[string]struct{}{}
	for _, key := range slices.Collect(maps.Keys(set)) {
		if name, ok := strings.CutPrefix(key, "f:"); ok {
			out[name] = struct{}{}
		}
	}
	return out
}
