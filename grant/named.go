package grant

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/gpuslice/gpuslice/internal/quote"
)

// AnnotationGrant is gpuslice's annotation, keyed by container name. If it is present, HAMi's are ignored.
const AnnotationGrant = "gpuslice.io/grant"

// namedVersion is the annotation's only version.
const namedVersion = 1

const maxGeneration = 1 << 40

// PodGrant is a pod's grant keyed by container name.
type PodGrant struct {
	// Node is the node of the grant; "" if the annotation names none. GPU UUIDs are unique, so another node
	// rejects the grant in any case.
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
// It is strict: all fields but node and generation are required (missing cores would be "no limit"), and
// unknown versions and fields, duplicate keys, values of another type and trailing data are rejected.
func DecodeGrant(value string) (*PodGrant, error) {
	if len(value) > MaxAnnotationBytes {
		return nil, Errorf(ErrMalformed, "%d bytes: at most %d are read", len(value), MaxAnnotationBytes)
	}
	reader, err := newJSONReader(value)
	if err != nil {
		return nil, err
	}
	pod := &PodGrant{}
	version := int64(0)
	err = reader.object(func(key string) (err error) {
		switch key {
		case "version":
			if version, err = reader.number(1, namedVersion); err != nil {
				return fmt.Errorf("version: %w (this agent reads version %d)", err, namedVersion)
			}
		case "node":
			if pod.Node, err = reader.text(); err != nil {
				return fmt.Errorf("node: %w", err)
			}
			if pod.Node == "" {
				return Errorf(ErrMalformed, "node: must not be empty: name the node or leave the field out")
			}
		case "generation":
			if pod.Generation, err = reader.number(1, maxGeneration); err != nil {
				return fmt.Errorf("generation: %w", err)
			}
		case "containers":
			if pod.Containers, err = decodeContainers(reader); err != nil {
				return fmt.Errorf("containers%w", err)
			}
		default:
			return Errorf(ErrMalformed, "field %s is not known: version, node, generation and containers are", quote.Short(key))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if version == 0 {
		return nil, Errorf(ErrMalformed, "version is missing: write \"version\":%d", namedVersion)
	}
	if len(pod.Containers) == 0 {
		return nil, Errorf(ErrMalformed, "containers is missing or empty: name a container, or remove the annotation")
	}
	return pod, nil
}

// decodeContainers reads the object with the container names. Its errors continue the word "containers".
func decodeContainers(reader *jsonReader) (map[string][]Share, error) {
	containers := map[string][]Share{}
	name := ""
	err := reader.object(func(key string) error {
		name = key
		if err := validateContainerName(key); err != nil {
			return err
		}
		if len(containers) == MaxContainers {
			return Errorf(ErrMalformed, "more than %d containers", MaxContainers)
		}
		shares, err := decodeShares(reader)
		if err != nil {
			return err
		}
		containers[key] = shares
		return nil
	})
	if err != nil && name != "" {
		return nil, fmt.Errorf(" %s: %w", quote.Short(name), err)
	}
	if err != nil {
		return nil, fmt.Errorf(": %w", err)
	}
	return containers, nil
}

func decodeShares(reader *jsonReader) ([]Share, error) {
	var shares []Share
	err := reader.array(func(i int) error {
		if i == MaxShares {
			return Errorf(ErrMalformed, "more than %d shares: a container may have at most %d", MaxShares, MaxShares)
		}
		share, err := decodeShare(reader)
		if err != nil {
			return fmt.Errorf("share %d: %w", i, err)
		}
		shares = append(shares, share)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return shares, ValidateShares(shares)
}

func decodeShare(reader *jsonReader) (share Share, err error) {
	missing := map[string]bool{"uuid": true, "memoryMiB": true, "cores": true}
	err = reader.object(func(key string) (err error) {
		var n int64
		switch key {
		case "uuid":
			share.UUID, err = reader.text()
		case "memoryMiB":
			share.MemoryMiB, err = reader.number(1, MaxMemoryMiB)
		case "cores":
			n, err = reader.number(0, MaxCorePercent)
			share.CorePercent = int(n)
		default:
			return Errorf(ErrMalformed, "field %s is not known: uuid, memoryMiB and cores are", quote.Short(key))
		}
		delete(missing, key)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	})
	if err != nil {
		return Share{}, err
	}
	for _, field := range []string{"uuid", "memoryMiB", "cores"} {
		if missing[field] {
			return Share{}, Errorf(ErrMalformed, "%s is missing: a share has uuid, memoryMiB and cores (0: not limited)", field)
		}
	}
	return share, nil
}

// validateContainerName checks for an RFC 1123 label.
func validateContainerName(name string) error {
	ok := 1 <= len(name) && len(name) <= 63 && !strings.HasPrefix(name, "-") && !strings.HasSuffix(name, "-")
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-'
	}
	if !ok {
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
		return "", fmt.Errorf("encode %s: %w", AnnotationGrant, err)
	}
	return string(value), nil
}
