package request

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
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

func (n *annotationReader) read(key string, parse func(value string) error) {
	value, ok := n.annotations[key]
	if !ok || n.err != nil {
		return
	}
	if err := parse(value); err != nil {
		n.err = &Error{Key: key, Value: quote.Short(value), Why: err.Error()}
	}
}

// list reads a comma-separated list and sorts it. Blank is no list (HAMi's rule).
func (n *annotationReader) list(key string, most int, entry func(string) (string, error)) (entries []string) {
	n.read(key, func(value string) (err error) {
		if strings.TrimSpace(value) != "" {
			entries, err = split(value, most, entry)
		}
		return err
	})
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

func (n *annotationReader) text(key string, check func(string) error) (text string) {
	n.read(key, func(value string) error {
		if len(value) > maxPolicyBytes {
			return fmt.Errorf("may have at most %d bytes", maxPolicyBytes)
		}
		text = strings.TrimSpace(value)
		return check(text)
	})
	return text
}

func (n *annotationReader) boolean(key string) (is bool) {
	n.read(key, func(value string) (err error) {
		if is, err = strconv.ParseBool(strings.TrimSpace(value)); err != nil {
			err = errors.New("must be true or false")
		}
		return err
	})
	return is
}

func (n *annotationReader) groupMin(group string) (least int) {
	n.read(api.AnnotationGroupMin, func(value string) (err error) {
		if least, err = strconv.Atoi(value); err != nil || least < 1 || least > maxGroup {
			return fmt.Errorf("must be a number of pods from 1 to %d", maxGroup)
		}
		if group == "" {
			return fmt.Errorf("the pod has no group: set the label %s", api.LabelGroup)
		}
		return nil
	})
	return least
}

// ceiling checks an annotation that only the node uses.
func (n *annotationReader) ceiling(key string) {
	n.read(key, func(value string) error {
		if _, err := grant.CoreCeiling(grant.Pod{Annotations: map[string]string{key: value}}, ""); err != nil {
			return fmt.Errorf("must be 1 to %d percent of a GPU, in digits", grant.MaxCorePercent)
		}
		return nil
	})
}
