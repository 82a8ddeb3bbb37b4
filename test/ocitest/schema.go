// Package ocitest checks config.json files against the runtime spec's JSON schema.
package ocitest

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// schema is by file name.
type schema map[string]map[string]any

// CheckConfig returns what is wrong with a config.json.
func CheckConfig(data []byte) (bad []string, err error) {
	s, err := ociSchema()
	if err != nil {
		return nil, err
	}
	var config any
	if err := json.Unmarshal(data, &config); err != nil {
		return []string{err.Error()}, nil
	}
	return s.check("config-schema.json", s["config-schema.json"], config, ""), nil
}

// ociSchema reads it from the runtime spec's module.
var ociSchema = sync.OnceValues(func() (schema, error) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/opencontainers/runtime-spec").Output()
	if err != nil {
		return nil, fmt.Errorf("find the module of the runtime spec: %w", err)
	}
	paths, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "schema", "*.json"))
	if err != nil {
		return nil, err
	}
	s := schema{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var file map[string]any
		if err := json.Unmarshal(data, &file); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		s[filepath.Base(path)] = file
	}
	return s, nil
})

// check reports unknown keywords too: a newer schema must not be partly ignored.
func (s schema) check(file string, rule map[string]any, v any, at string) (bad []string) {
	fail := func(format string, args ...any) { bad = append(bad, at+": "+fmt.Sprintf(format, args...)) }
	check := func(rule, v any, at string) { bad = append(bad, s.check(file, rule.(map[string]any), v, at)...) }
	object, isObject := v.(map[string]any)
	list, isList := v.([]any)
	text, isText := v.(string)
	number, isNumber := v.(float64)
	for keyword, want := range rule {
		switch keyword {
		case "description", "$schema", "id", "definitions", "linux", "solaris", "windows", "vm", "zos", "freebsd":
		case "$ref":
			refFile, refRule := s.resolve(file, want.(string))
			if refRule == nil {
				fail("the schema has no %v", want)
			}
			bad = append(bad, s.check(refFile, refRule, v, at)...)
		case "type":
			if !hasType(v, want.(string)) {
				fail("%v is no %v", v, want)
			}
		case "enum":
			if !slices.Contains(want.([]any), v) {
				fail("%v is none of %v", v, want)
			}
		case "pattern":
			if isText && !regexp.MustCompile(want.(string)).MatchString(text) {
				fail("%q doesn't match %v", text, want)
			}
		case "minimum", "maximum":
			if isNumber && (keyword == "minimum" && number < want.(float64) || keyword == "maximum" && number > want.(float64)) {
				fail("%v is beyond the %s %v", number, keyword, want)
			}
		case "required":
			for _, name := range want.([]any) {
				if _, has := object[name.(string)]; isObject && !has {
					fail("lacks %v", name)
				}
			}
		case "minItems":
			if isList && float64(len(list)) < want.(float64) {
				fail("has %d items", len(list))
			}
		case "items":
			for i, item := range list {
				check(want, item, fmt.Sprintf("%s[%d]", at, i))
			}
		case "properties":
			for name, sub := range want.(map[string]any) {
				if item, has := object[name]; has {
					check(sub, item, at+"."+name)
				}
			}
		case "patternProperties", "additionalProperties":
			patterns := want.(map[string]any)
			if keyword == "additionalProperties" {
				patterns = map[string]any{"": want}
			}
			for pattern, sub := range patterns {
				for name, item := range object {
					if regexp.MustCompile(pattern).MatchString(name) {
						check(sub, item, at+"."+name)
					}
				}
			}
		case "allOf":
			for _, sub := range want.([]any) {
				check(sub, v, at)
			}
		case "anyOf":
			if !slices.ContainsFunc(want.([]any), func(sub any) bool { return len(s.check(file, sub.(map[string]any), v, at)) == 0 }) {
				fail("%v is none of the kinds", v)
			}
		default:
			fail("the schema's keyword %q is not known here", keyword)
		}
	}
	return bad
}

// resolve finds "file.json#/definitions/X".
func (s schema) resolve(file, ref string) (string, map[string]any) {
	name, fragment, _ := strings.Cut(ref, "#")
	if name == "" {
		name = file
	}
	rule := s[name]
	for _, part := range strings.Split(strings.Trim(fragment, "/"), "/") {
		if part != "" {
			rule, _ = rule[part].(map[string]any)
		}
	}
	return name, rule
}

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
	case float64:
		return want == "number" || want == "integer" && v == math.Trunc(v)
	default:
		return want == "null"
	}
}
