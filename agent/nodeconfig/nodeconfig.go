// Package nodeconfig reads HAMi's JSON file of options by node: [Resolve] returns the entry that matches a
// node, [Watcher] follows the file. install/nodeconfig.schema.json describes the fields; nameglob and
// matchlabels are not HAMi's.
package nodeconfig

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	kjson "sigs.k8s.io/json"

	"github.com/gpuslice/gpuslice/api"
)

// DefaultPath is the path in HAMi's manifests.
const DefaultPath = "/config/config.json"

// maxSize is more than a ConfigMap can hold.
const maxSize = 1 << 20

const (
	minScaling, maxScaling = 0.01, 100
	maxSplitCount          = 1000
	maxMemoryMiB           = 1 << 24
	maxLogLevel            = 4
	maxIndex               = 1023
)

type File struct {
	entries []entry
}

// Settings are one entry's values. Nil or empty fields are not set.
type Settings struct {
	OperatingMode string   `json:"operatingmode"`
	MIGStrategy   string   `json:"migstrategy"`
	MemoryScaling *float64 `json:"devicememoryscaling"`
	CoresScaling  *float64 `json:"devicecorescaling"`
	SplitCount    *int     `json:"devicesplitcount"`
	// MemoryMiB replaces NVML's memory size of each GPU, unless it is 0, HAMi's default.
	MemoryMiB           *int64       `json:"preconfigureddevicememory"`
	LogLevel            *json.Number `json:"libcudaloglevel"`
	NUMATopology        *bool        `json:"enablenumatopology"`
	Excluded            Filter       `json:"filterdevices"`
	PreferredAllocation *bool        `json:"enablegetpreferredallocation"`
}

type Filter struct {
	UUIDs   []string `json:"uuid"`
	Indices []int    `json:"index"`
}

func (s Settings) Excludes(uuid string, index int) bool {
	return slices.Contains(s.Excluded.Indices, index) ||
		slices.ContainsFunc(s.Excluded.UUIDs, func(u string) bool { return strings.EqualFold(u, uuid) })
}

type entry struct {
	Name        string            `json:"name"`
	NameGlob    string            `json:"nameglob"`
	MatchLabels map[string]string `json:"matchlabels"`
	Settings
}

// DecodeFor reads a file for a node. The error has the mistakes, by entry and field. It ignores entries
// that name another node if they have mistakes, and returns those mistakes in others.
func DecodeFor(data []byte, node string) (f File, others, err error) {
	if len(data) > maxSize {
		return File{}, nil, fmt.Errorf("the file has more than %d bytes", maxSize)
	}
	var raw struct {
		NodeConfig []json.RawMessage `json:"nodeconfig"`
	}
	if err := strict(data, &raw); err != nil {
		return File{}, nil, err
	}
	if raw.NodeConfig == nil {
		return File{}, nil, errors.New(`must be {"nodeconfig": [...]}`)
	}
	var errs, otherErrs []error
	seen := map[string]string{}
	for i, text := range raw.NodeConfig {
		var e entry
		where := fmt.Sprintf("nodeconfig[%d]", i)
		if err := strict(text, &e); err != nil {
			var only struct{ Name string }
			_ = json.Unmarshal(text, &only) // no name: can match any node
			if node != "" && only.Name != "" && only.Name != node {
				otherErrs = append(otherErrs, fmt.Errorf("%s (name %s): %w", where, only.Name, err))
			} else {
				errs = append(errs, fmt.Errorf("%s: %w", where, err))
			}
			continue
		}
		mistakes := len(errs)
		if match := e.match(); match != "" {
			where += " (" + match + ")"
			if first, twice := seen[match]; twice {
				errs = append(errs, fmt.Errorf("%s: matches the same nodes as %s", where, first))
			} else {
				seen[match] = fmt.Sprintf("nodeconfig[%d]", i)
			}
		}
		for _, err := range e.validate() {
			errs = append(errs, fmt.Errorf("%s: %w", where, err))
		}
		if node != "" && e.Name != "" && e.Name != node {
			otherErrs, errs = append(otherErrs, errs[mistakes:]...), errs[:mistakes]
			continue
		}
		f.entries = append(f.entries, e)
	}
	if err := errors.Join(errs...); err != nil {
		return File{}, nil, err
	}
	return f, errors.Join(otherErrs...), nil
}

// strict rejects unknown and duplicate fields, of which encoding/json would ignore the first.
func strict(data []byte, to any) error {
	mistakes, err := kjson.UnmarshalStrict(data, to)
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s: must be %s, not %s", cmp.Or(strings.TrimPrefix(strings.Trim(e.Field, "."), "Settings."), "the file"), wanted(e.Type.Kind()), e.Value)
	}
	if isSyntax, offset := kjson.SyntaxErrorOffset(err); isSyntax {
		return fmt.Errorf("byte %d: %w", offset, err)
	}
	return errors.Join(append(mistakes, err)...)
}

func wanted(k reflect.Kind) string {
	switch k {
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "a text"
}

// Sources: Kubernetes' "Object Names and IDs" and "Labels and Selectors", NVML's UUIDs.
var (
	namePattern       = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	globPattern       = regexp.MustCompile(`^[-a-z0-9.*?\[\]^]{1,253}$`)
	labelKeyPattern   = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	labelValuePattern = regexp.MustCompile(`^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`)
	uuidPattern       = regexp.MustCompile(`^(GPU|MIG)-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
)

func (e entry) validate() []error {
	var errs []error
	want := func(ok bool, field, wanted string, got any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: must be %s, not %q", field, wanted, fmt.Sprint(got)))
		}
	}
	if e.Name == "" && e.NameGlob == "" && len(e.MatchLabels) == 0 {
		errs = append(errs, errors.New(`matches no node: set name, nameglob ("*" for every node) or matchlabels`))
	}
	if e.Name != "" {
		want(namePattern.MatchString(e.Name), "name", "a node's name", e.Name)
		want(e.NameGlob == "", "nameglob", "empty if name is set", e.NameGlob)
		want(len(e.MatchLabels) == 0, "matchlabels", "empty if name is set", e.MatchLabels)
	}
	if e.NameGlob != "" {
		_, err := path.Match(e.NameGlob, "")
		want(err == nil && globPattern.MatchString(e.NameGlob), "nameglob", "a pattern of node names such as gpu-*", e.NameGlob)
	}
	for _, key := range slices.Sorted(maps.Keys(e.MatchLabels)) {
		want(labelKeyPattern.MatchString(key), "matchlabels", "the key of a label", key)
		want(!strings.HasPrefix(key, api.LabelPrefix), "matchlabels", "a label that gpuslice does not write: its own labels depend on this file", key)
		want(labelValuePattern.MatchString(e.MatchLabels[key]), "matchlabels."+key, "a label's value", e.MatchLabels[key])
	}
	want(slices.Contains([]string{"", "hami-core", "mig", "mps"}, e.OperatingMode), "operatingmode", "hami-core, mig or mps", e.OperatingMode)
	want(slices.Contains([]string{"", "none", "single", "mixed"}, e.MIGStrategy), "migstrategy", "none, single or mixed", e.MIGStrategy)
	scaling := func(field string, x *float64) {
		if x != nil {
			want(*x >= minScaling && *x <= maxScaling, field, fmt.Sprintf("%v to %v", minScaling, maxScaling), *x)
		}
	}
	scaling("devicememoryscaling", e.MemoryScaling)
	scaling("devicecorescaling", e.CoresScaling)
	if e.SplitCount != nil {
		want(*e.SplitCount >= 1 && *e.SplitCount <= maxSplitCount, "devicesplitcount", fmt.Sprintf("1 to %d", maxSplitCount), *e.SplitCount)
	}
	if e.MemoryMiB != nil {
		want(*e.MemoryMiB >= 0 && *e.MemoryMiB <= maxMemoryMiB, "preconfigureddevicememory", fmt.Sprintf("0 to %d MiB", maxMemoryMiB), *e.MemoryMiB)
	}
	if e.LogLevel != nil {
		level, err := strconv.ParseUint(e.LogLevel.String(), 10, 8)
		want(err == nil && level <= maxLogLevel, "libcudaloglevel", fmt.Sprintf("0 to %d", maxLogLevel), *e.LogLevel)
	}
	for i, uuid := range e.Excluded.UUIDs {
		field := fmt.Sprintf("filterdevices.uuid[%d]", i)
		want(uuidPattern.MatchString(uuid), field, "a GPU's UUID, as nvidia-smi -L prints it", uuid)
		want(!slices.ContainsFunc(e.Excluded.UUIDs[:i], func(u string) bool { return strings.EqualFold(u, uuid) }), field, "a list without duplicates", uuid)
	}
	for i, index := range e.Excluded.Indices {
		field := fmt.Sprintf("filterdevices.index[%d]", i)
		want(index >= 0 && index <= maxIndex, field, fmt.Sprintf("0 to %d", maxIndex), index)
		want(!slices.Contains(e.Excluded.Indices[:i], index), field, "a list without duplicates", index)
	}
	return errs
}

// match is equal for entries that match the same nodes.
func (e entry) match() string {
	var parts []string
	if e.Name != "" {
		parts = append(parts, "name "+e.Name)
	}
	if e.NameGlob != "" {
		parts = append(parts, "nameglob "+e.NameGlob)
	}
	for _, key := range slices.Sorted(maps.Keys(e.MatchLabels)) {
		parts = append(parts, "label "+key+"="+e.MatchLabels[key])
	}
	return strings.Join(parts, ", ")
}

// NeedsLabels reports whether the node's labels can decide which entry applies.
func (f File) NeedsLabels(node string) bool {
	for _, e := range f.entries {
		bare := e
		bare.MatchLabels = nil
		if len(e.MatchLabels) > 0 && bare.matches(node, nil) {
			return true
		}
	}
	return false
}

func (e entry) matches(node string, labels map[string]string) bool {
	if e.Name != "" && e.Name != node {
		return false
	}
	if e.NameGlob != "" {
		if ok, _ := path.Match(e.NameGlob, node); !ok {
			return false
		}
	}
	for key, value := range e.MatchLabels {
		if have, ok := labels[key]; !ok || have != value {
			return false
		}
	}
	return true
}

// specificity orders entries by name, then literal characters of the glob, then number of labels.
func (e entry) specificity() [3]int {
	var s [3]int
	if e.Name != "" {
		s[0] = 1
	}
	if e.NameGlob != "" {
		s[1] = 1 + len(e.NameGlob) - strings.Count(e.NameGlob, "*") - strings.Count(e.NameGlob, "?")
	}
	s[2] = len(e.MatchLabels)
	return s
}

// Resolve returns the most specific entry of which name, nameglob and matchlabels all match: a name
// before any glob, then the glob with more literal characters, then more labels. Two equally
// specific entries are an error.
func Resolve(f File, node string, labels map[string]string) (Settings, error) {
	var best, rival *entry
	for i := range f.entries {
		e := &f.entries[i]
		if !e.matches(node, labels) {
			continue
		}
		order := 1
		if best != nil {
			have, got := best.specificity(), e.specificity()
			order = slices.Compare(got[:], have[:])
		}
		switch {
		case order > 0:
			best, rival = e, nil
		case order == 0:
			rival = e
		}
	}
	if best == nil {
		return Settings{}, nil
	}
	if rival != nil {
		return Settings{}, fmt.Errorf("node %s: the entries (%s) and (%s) match it equally: make one of them more specific", node, best.match(), rival.match())
	}
	return best.Settings, nil
}
