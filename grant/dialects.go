package grant

import (
	"slices"

	"github.com/gpuslice/gpuslice/api"
)

// Dialects are the formats in which schedulers write grants to pods. A pod's grant is in the first dialect of which
// it has a grant annotation, also if that is malformed. Only schedulers may write the annotations: api.Owned has them.
var Dialects = []Dialect{
	{
		Source: SourceNamed, Name: "gpuslice",
		Grants:    []string{api.AnnotationGrant},
		Signature: api.AnnotationSignature,
		Decode:    decodeNamed,
	},
	{
		Source: SourceHAMi, Name: "HAMi",
		// HAMi's device plugin empties the second position by position.
		Grants: []string{api.AnnotationHAMiAllocated, api.AnnotationHAMiToAllocate},
		Node:   api.AnnotationHAMiNode,
		Decode: decodePositional,
	},
	{
		Source: SourceVolcano, Name: "Volcano",
		Grants:     []string{api.AnnotationVolcanoAllocated, api.AnnotationVolcanoToAllocate},
		Node:       api.AnnotationVolcanoNode,
		Requesters: []string{api.ResourceVolcanoGPU, api.ResourceVolcanoMemory},
		Decode:     decodeVolcano,
	},
}

// Dialect is a format of a scheduler's annotations. A pod with any of them belongs to the scheduler, whatever the
// values are.
type Dialect struct {
	Source Source
	// Name is the scheduler's, for messages.
	Name string
	// Grants are the annotations with the shares; the first that a pod has counts. Others may only have emptied
	// positions.
	Grants []string
	// Node is the annotation with the node of the GPUs; "": the grant has it.
	Node string
	// Signature is the annotation that signs the grant for the pod and the node; "": such grants can't be signed.
	Signature string
	// Requesters are the resources with which an app container has a position; nil: each container has one.
	Requesters []string
	// Decode reads the value of one of Grants.
	Decode func(value string) (Granted, error)
}

// Granted is what a pod's annotations grant: either Named or Positional.
type Granted struct {
	Dialect *Dialect
	// Key is the annotation that was read; NodeKey is the one that has the node.
	Key, NodeKey string
	// Node is the node of the grant, or "".
	Node       string
	Generation int64
	Named      map[string][]Share
	Positional Positional
}

// Empty returns whether no container has a share.
func (g *Granted) Empty() bool { return len(g.Named) == 0 && g.Positional.Empty() }

func decodeNamed(value string) (Granted, error) {
	pod, err := DecodeGrant(value)
	if err != nil {
		return Granted{}, err
	}
	return Granted{Node: pod.Node, Generation: pod.Generation, Named: pod.Containers}, nil
}

func decodePositional(value string) (Granted, error) {
	positional, err := DecodeHAMi(value)
	return Granted{Positional: positional}, err
}

// dialectOf returns the dialect of a pod's grant and the annotation to read, or nil.
func dialectOf(annotations map[string]string) (d *Dialect, key string) {
	for i := range Dialects {
		for _, key := range Dialects[i].Grants {
			if _, ok := annotations[key]; ok {
				return &Dialects[i], key
			}
		}
	}
	return nil, ""
}

// Decode reads a pod's annotations; nil: they grant nothing. It verifies no signature.
func Decode(annotations map[string]string) (*Granted, error) {
	d, key := dialectOf(annotations)
	if d == nil {
		return nil, nil
	}
	g, err := d.read(annotations, key)
	if err != nil || g.Empty() {
		return nil, err
	}
	return g, nil
}

func (d *Dialect) read(annotations map[string]string, key string) (*Granted, error) {
	g, err := d.Decode(annotations[key])
	if err != nil {
		return nil, inAnnotation(key, err)
	}
	g.Dialect, g.Key, g.NodeKey = d, key, key
	if d.Node != "" {
		g.Node, g.NodeKey = annotations[d.Node], d.Node
	}
	return &g, nil
}

// checkCopies rejects contradicting Grants: another program wrote one.
func (g *Granted) checkCopies(annotations map[string]string) error {
	for _, key := range g.Dialect.Grants {
		value, ok := annotations[key]
		if !ok || key == g.Key {
			continue
		}
		left, err := g.Dialect.Decode(value)
		if err != nil {
			return inAnnotation(key, err)
		}
		if !isRemainder(left.Positional, g.Positional) {
			return Errorf(ErrMalformed, "annotation %s: contradicts %s: both must be equal except for emptied positions; delete the pod so that it is scheduled again", key, g.Key)
		}
	}
	return nil
}

func isRemainder(left, whole Positional) bool {
	if left.Empty() {
		return true
	}
	return slices.EqualFunc(left, whole, func(l, w []Share) bool {
		return len(l) == 0 || slices.Equal(l, w)
	})
}

// Scheduled returns whether a scheduler annotated the pod, also with nothing for a container, or unreadably.
func (p Pod) Scheduled() bool {
	return slices.ContainsFunc(Dialects, func(d Dialect) bool {
		return slices.ContainsFunc(d.keys(), func(key string) bool {
			_, ok := p.Annotations[key]
			return ok
		})
	})
}

func (d *Dialect) keys() []string {
	keys := slices.Clone(d.Grants)
	for _, key := range []string{d.Node, d.Signature} {
		if key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}
