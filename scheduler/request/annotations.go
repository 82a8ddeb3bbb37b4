package request

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// Limits on annotations, to bound the cost of evaluating a GPU.
const (
	maxListBytes   = 64 << 10
	maxTypes       = 64
	maxUUIDs       = 1024
	maxPolicyBytes = 256
	maxGroup       = 10_000
)

// annotationReader reads annotations until the first error.
type annotationReader struct {
	annotations map[string]string
	err         error
}

func (n *annotationReader) get(key string) (value string, there bool) {
	if n.err != nil {
		return "", false
	}
	value, there = n.annotations[key]
	return value, there
}

func (n *annotationReader) fail(key, value string, err error) {
	n.err = &Error{Key: key, Value: quote.Short(value), Why: err.Error()}
}

// list reads a comma-separated list and sorts it. Blank is no list (HAMi's rule).
func (n *annotationReader) list(key string, most int, entry func(string) (string, error)) []string {
	value, there := n.get(key)
	if !there || strings.TrimSpace(value) == "" {
		return nil
	}
	entries, err := split(value, most, entry)
	if err != nil {
		n.fail(key, value, err)
		return nil
	}
	slices.Sort(entries)
	return slices.Compact(entries)
}

func split(value string, most int, entry func(string) (string, error)) ([]string, error) {
	if len(value) > maxListBytes {
		return nil, fmt.Errorf("may have at most %d bytes", maxListBytes)
	}
	count := strings.Count(value, ",") + 1
	if count > most {
		return nil, fmt.Errorf("has %d entries, at most %d are allowed", count, most)
	}
	entries := make([]string, 0, count)
	for e := range strings.SplitSeq(value, ",") {
		if e = strings.TrimSpace(e); e == "" {
			return nil, errors.New("has an empty entry: separate entries with one comma")
		}
		e, err := entry(e)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func (n *annotationReader) text(key string, check func(string) error) string {
	value, there := n.get(key)
	if !there {
		return ""
	}
	text := strings.TrimSpace(value)
	err := fmt.Errorf("may have at most %d bytes", maxPolicyBytes)
	if len(value) <= maxPolicyBytes {
		err = check(text)
	}
	if err != nil {
		n.fail(key, value, err)
		return ""
	}
	return text
}

func (n *annotationReader) boolean(key string) bool {
	value, there := n.get(key)
	if !there {
		return false
	}
	is, err := strconv.ParseBool(strings.TrimSpace(value))
	if err != nil {
		n.fail(key, value, errors.New("must be true or false"))
	}
	return is
}

func (n *annotationReader) groupMin(group string) int {
	value, there := n.get(AnnotationGroupMin)
	if !there {
		return 0
	}
	least, err := strconv.Atoi(value)
	switch {
	case err != nil || least < 1 || least > maxGroup:
		n.fail(AnnotationGroupMin, value, fmt.Errorf("must be a number of pods from 1 to %d", maxGroup))
		return 0
	case group == "":
		n.fail(AnnotationGroupMin, value, fmt.Errorf("the pod has no group: set the label %s", LabelGroup))
		return 0
	}
	return least
}

// ceiling checks an annotation that only the node uses.
func (n *annotationReader) ceiling(key string) {
	value, there := n.get(key)
	if !there {
		return
	}
	if _, err := grant.CoreCeiling(grant.Pod{Annotations: map[string]string{key: value}}, ""); err != nil {
		n.fail(key, value, fmt.Errorf("must be 1 to %d percent of a GPU, in digits", grant.MaxCorePercent))
	}
}
