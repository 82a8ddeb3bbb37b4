// Package ocitest checks config.json files against the runtime spec's own schema, for the
// tests of those who write them. It imports nothing of ours.
package ocitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// schema checks JSON against the runtime-spec's own schema, as far as that one
// goes: the dozen keywords that its files use. A keyword that isn't known is an
// error, so that a newer schema isn't half checked.
type schema struct {
	files map[string]map[string]any
}

// CheckConfig validates a config.json: what is wrong with it, nothing if all is right. An
// error means that there is no schema to be had.
func CheckConfig(data []byte) (bad []string, err error) {
	s, err := ociSchema()
	if err != nil {
		return nil, err
	}
	return s.checkConfig(data), nil
}

// ociSchema reads the schema that comes with the module of the runtime spec.
var ociSchema = sync.OnceValues(func() (*schema, error) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/opencontainers/runtime-spec").Output()
	if err != nil {
		return nil, fmt.Errorf("find the module of the runtime spec: %w", err)
	}
	s := &schema{files: map[string]map[string]any{}}
	paths, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "schema", "*.json"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		file, err := decode(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		s.files[filepath.Base(path)] = file.(map[string]any)
	}
	return s, nil
})

// decode reads JSON with exact numbers.
func decode(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	err := dec.Decode(&v)
	return v, err
}

// checkConfig validates a config.json.
func (s *schema) checkConfig(data []byte) []string {
	v, err := decode(data)
	if err != nil {
		return []string{err.Error()}
	}
	return s.check("config-schema.json", s.files["config-schema.json"], v, "")
}

// check validates a value at a path by a rule of a file.
func (s *schema) check(file string, rule map[string]any, v any, at string) (bad []string) {
	complain := func(format string, args ...any) { bad = append(bad, at+": "+fmt.Sprintf(format, args...)) }
	for keyword, want := range rule {
		switch keyword {
		case "description", "$schema", "id", "definitions", "linux", "solaris", "windows", "vm", "zos", "freebsd":
		case "$ref":
			refFile, refRule := s.resolve(file, want.(string))
			if refRule == nil {
				complain("the schema has no %v", want)
				continue
			}
			bad = append(bad, s.check(refFile, refRule, v, at)...)
		case "type":
			if !hasType(v, want.(string)) {
				complain("%v is no %v", v, want)
			}
		case "enum":
			if !slices.ContainsFunc(want.([]any), func(x any) bool { return fmt.Sprint(x) == fmt.Sprint(v) }) {
				complain("%v is none of %v", v, want)
			}
		case "pattern":
			if text, ok := v.(string); ok && !regexp.MustCompile(want.(string)).MatchString(text) {
				complain("%q doesn't match %v", text, want)
			}
		case "minimum", "maximum":
			if n, ok := v.(json.Number); ok && compare(n, want.(json.Number))*map[string]int{"minimum": -1, "maximum": 1}[keyword] > 0 {
				complain("%v is beyond the %s %v", n, keyword, want)
			}
		case "required":
			if object, ok := v.(map[string]any); ok {
				for _, name := range want.([]any) {
					if _, has := object[name.(string)]; !has {
						complain("lacks %v", name)
					}
				}
			}
		case "minItems":
			if list, ok := v.([]any); ok && compare(json.Number(fmt.Sprint(len(list))), want.(json.Number)) < 0 {
				complain("has %d items", len(list))
			}
		case "items":
			list, _ := v.([]any)
			for i, item := range list {
				bad = append(bad, s.check(file, want.(map[string]any), item, fmt.Sprintf("%s[%d]", at, i))...)
			}
		case "properties":
			object, _ := v.(map[string]any)
			for name, sub := range want.(map[string]any) {
				if item, has := object[name]; has {
					bad = append(bad, s.check(file, sub.(map[string]any), item, at+"."+name)...)
				}
			}
		case "patternProperties":
			object, _ := v.(map[string]any)
			for pattern, sub := range want.(map[string]any) {
				for name, item := range object {
					if regexp.MustCompile(pattern).MatchString(name) {
						bad = append(bad, s.check(file, sub.(map[string]any), item, at+"."+name)...)
					}
				}
			}
		case "additionalProperties":
			if sub, ok := want.(map[string]any); ok {
				object, _ := v.(map[string]any)
				for name, item := range object {
					bad = append(bad, s.check(file, sub, item, at+"."+name)...)
				}
			}
		case "allOf":
			for _, sub := range want.([]any) {
				bad = append(bad, s.check(file, sub.(map[string]any), v, at)...)
			}
		case "anyOf":
			if !slices.ContainsFunc(want.([]any), func(sub any) bool { return len(s.check(file, sub.(map[string]any), v, at)) == 0 }) {
				complain("%v is none of the kinds", v)
			}
		default:
			complain("the schema's keyword %q is not known here", keyword)
		}
	}
	return bad
}

// resolve finds what "file.json#/definitions/X" means in a file.
func (s *schema) resolve(file, ref string) (string, map[string]any) {
	name, fragment, _ := strings.Cut(ref, "#")
	if name == "" {
		name = file
	}
	rule := s.files[name]
	for _, part := range strings.Split(strings.Trim(fragment, "/"), "/") {
		if part != "" {
			rule, _ = rule[part].(map[string]any)
		}
	}
	return name, rule
}

// hasType says whether a value is of a JSON schema type.
func hasType(v any, want string) bool {
	switch v := v.(type) {
	case map[string]any:
		return want == "object"
	case []any:
		return want == "array"
	case string:
		return want == "string"
	case bool:
		return want == "boolean"
	case json.Number:
		return want == "number" || want == "integer" && !strings.ContainsAny(v.String(), ".eE")
	default:
		return want == "null"
	}
}

// compare orders two numbers of any size.
func compare(a, b json.Number) int {
	x, _ := new(big.Float).SetPrec(128).SetString(a.String())
	y, _ := new(big.Float).SetPrec(128).SetString(b.String())
	return x.Cmp(y)
}
