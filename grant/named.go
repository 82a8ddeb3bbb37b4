package grant

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/quote"
)

const namedVersion = 1

const maxGeneration = 1 << 40

// PodGrant is a pod's grant keyed by container name.
type PodGrant struct {
	// Node is the node of the grant, or "".
	Node string
	// Generation is the number of resizes: the highest of a pod's grants counts. 0 is the one at its bind, and
	// is omitted.
	Generation int64
	// Containers are the shares by container name. Others have no grant.
	Containers map[string][]Share
}

// DecodeGrant reads the value of gpuslice.io/grant:
//
//	{"version":1,"node":N,"generation":G,"containers":{NAME:[{"uuid":U,"memoryMiB":M,"cores":C}]}}
//
// All fields but node and generation are required. It rejects unknown versions and fields, duplicate keys,
// other types and trailing data.
func DecodeGrant(value string) (*PodGrant, error) {
	whole, err := parseJSON(value, MaxAnnotationBytes)
	if err != nil {
		return nil, err
	}
	fields, err := object(whole, "version", "node", "generation", "containers")
	if err != nil {
		return nil, err
	}
	version, ok := fields["version"]
	if !ok {
		return nil, Errorf(ErrMalformed, "version is missing: write \"version\":%d", namedVersion)
	}
	if _, err := number(version, namedVersion, namedVersion); err != nil {
		return nil, fmt.Errorf("version: %w (this agent reads version %d)", err, namedVersion)
	}
	pod := &PodGrant{}
	if field, ok := fields["node"]; ok {
		if pod.Node, err = text(field); err != nil {
			return nil, fmt.Errorf("node: %w", err)
		}
		if pod.Node == "" {
			return nil, Errorf(ErrMalformed, "node: must not be empty: name the node or leave the field out")
		}
	}
	if field, ok := fields["generation"]; ok {
		if pod.Generation, err = number(field, 1, maxGeneration); err != nil {
			return nil, fmt.Errorf("generation: %w", err)
		}
	}
	if field, ok := fields["containers"]; ok {
		if pod.Containers, err = decodeContainers(field); err != nil {
			return nil, fmt.Errorf("containers%w", err)
		}
	}
	if len(pod.Containers) == 0 {
		return nil, Errorf(ErrMalformed, "containers is missing or empty: name a container, or remove the annotation")
	}
	return pod, nil
}

func decodeContainers(value json.RawMessage) (map[string][]Share, error) {
	fields, err := object(value)
	if err == nil && len(fields) > MaxContainers {
		err = Errorf(ErrMalformed, "more than %d containers", MaxContainers)
	}
	if err != nil {
		return nil, fmt.Errorf(": %w", err)
	}
	containers := map[string][]Share{}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		err := validateContainerName(name)
		if err == nil {
			containers[name], err = decodeShares(fields[name])
		}
		if err != nil {
			return nil, fmt.Errorf(" %s: %w", quote.Short(name), err)
		}
	}
	return containers, nil
}

func decodeShares(value json.RawMessage) ([]Share, error) {
	elements, err := array(value)
	if err != nil {
		return nil, err
	}
	if len(elements) > MaxShares {
		return nil, Errorf(ErrMalformed, "%d shares: a container may have at most %d", len(elements), MaxShares)
	}
	var shares []Share
	for i, element := range elements {
		share, err := decodeShare(element)
		if err != nil {
			return nil, fmt.Errorf("share %d: %w", i, err)
		}
		shares = append(shares, share)
	}
	return shares, ValidateShares(shares)
}

func decodeShare(value json.RawMessage) (share Share, err error) {
	names := []string{"uuid", "memoryMiB", "cores"}
	fields, err := object(value, names...)
	if err != nil {
		return Share{}, err
	}
	for _, name := range names {
		field, ok := fields[name]
		if !ok {
			return Share{}, Errorf(ErrMalformed, "%s is missing: a share has uuid, memoryMiB and cores (0: not limited)", name)
		}
		switch name {
		case "uuid":
			share.UUID, err = text(field)
		case "memoryMiB":
			share.MemoryMiB, err = number(field, 1, MaxMemoryMiB)
		case "cores":
			var n int64
			n, err = number(field, 0, MaxCorePercent)
			share.CorePercent = int(n)
		}
		if err != nil {
			return Share{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	return share, nil
}

func validateContainerName(name string) error {
	if name == "" || len(name) > 63 || strings.HasPrefix(name, "-") || strings.HasSuffix(name, "-") ||
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return Errorf(ErrMalformed, "container name %s: must be an RFC 1123 label as in the pod's spec", quote.Short(name))
	}
	return nil
}

// EncodeGrant returns the value of gpuslice.io/grant. It is deterministic.
func EncodeGrant(pod *PodGrant) (string, error) {
	if len(pod.Containers) == 0 || len(pod.Containers) > MaxContainers {
		return "", Errorf(ErrMalformed, "%d containers: must be from 1 to %d", len(pod.Containers), MaxContainers)
	}
	if !utf8.ValidString(pod.Node) {
		return "", Errorf(ErrMalformed, "node %s: not valid UTF-8", quote.Short(pod.Node))
	}
	for name, shares := range pod.Containers {
		if err := validateContainerName(name); err != nil {
			return "", err
		}
		if err := ValidateShares(shares); err != nil {
			return "", fmt.Errorf("container %q: %w", name, err)
		}
	}
	if pod.Generation < 0 || pod.Generation > maxGeneration {
		return "", Errorf(ErrMalformed, "generation %d: must be from 0 to %d", pod.Generation, int64(maxGeneration))
	}
	value, err := json.Marshal(struct {
		Version    int                `json:"version"`
		Node       string             `json:"node,omitempty"`
		Generation int64              `json:"generation,omitempty"`
		Containers map[string][]Share `json:"containers"`
	}{namedVersion, pod.Node, pod.Generation, pod.Containers})
	if err != nil {
		return "", fmt.Errorf("encode %s: %w", api.AnnotationGrant, err)
	}
	return string(value), nil
}

// EncodeShares returns the value of gpuslice.io/shares: a container's array in gpuslice.io/grant.
func EncodeShares(shares []Share) (string, error) {
	if err := ValidateShares(shares); err != nil {
		return "", err
	}
	value, err := json.Marshal(shares)
	if err != nil {
		return "", fmt.Errorf("encode %s: %w", api.AnnotationShares, err)
	}
	return string(value), nil
}

// DecodeShares reads the value of gpuslice.io/shares.
func DecodeShares(value string) ([]Share, error) {
	array, err := parseJSON(value, MaxAnnotationBytes)
	var shares []Share
	if err == nil {
		shares, err = decodeShares(array)
	}
	if err != nil {
		return nil, inAnnotation(api.AnnotationShares, err)
	}
	return shares, nil
}
