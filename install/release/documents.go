package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"

	"sigs.k8s.io/yaml"
)

// The parts of krew's manifest (krew.googlecontainertools.github.com/v1alpha2).
type (
	selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	}
	platform struct {
		Selector selector `json:"selector"`
		URI      string   `json:"uri"`
		SHA256   string   `json:"sha256"`
		Bin      string   `json:"bin"`
	}
)

func (o options) krew(platforms []platform) error {
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
		"kind":       "Plugin",
		"metadata":   map[string]string{"name": "gpuslice"},
		"spec": map[string]any{
			"version":          o.version,
			"homepage":         o.home,
			"shortDescription": "Show and change shares of NVIDIA GPUs",
			"description": "Shows the GPUs of a cluster, their shares and their use, why a pod waits, and\n" +
				"the state of nodes; resizes running pods, and cordons and drains GPUs.\n",
			"platforms": platforms,
		},
	})
	if err != nil {
		return err
	}
	return o.write("gpuslice.yaml", string(text))
}

// chart packs the chart with the release's version and the image's name. `helm package` would write the present time.
func (o options) chart() error {
	dir := filepath.Join(o.repository, "install/charts/gpuslice")
	staged, err := os.MkdirTemp("", "chart")
	if err != nil {
		return err
	}
	defer os.RemoveAll(staged)
	edits := map[string][]edit{
		"Chart.yaml": {
			{`(?m)^version: .*$`, "version: " + o.number()},
			{`(?m)^appVersion: .*$`, fmt.Sprintf("appVersion: %q", o.tag())},
		},
		"values.yaml": {{`(?m)^  repository: gpuslice$`, "  repository: " + o.image}},
	}
	var contents []content
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(file) // through links, as helm does
		if err != nil {
			return err
		}
		for _, e := range edits[name] {
			if n := len(regexp.MustCompile(e.pattern).FindAll(text, -1)); n != 1 {
				return fmt.Errorf("%s has %d lines like %s: want one", name, n, e.pattern)
			}
			text = regexp.MustCompile(e.pattern).ReplaceAllLiteral(text, []byte(e.line))
		}
		delete(edits, name)
		copied := filepath.Join(staged, fmt.Sprint(len(contents)))
		contents = append(contents, content{from: copied, to: name, mode: 0o644})
		return os.WriteFile(copied, text, 0o644)
	})
	if err != nil {
		return err
	}
	if len(edits) > 0 {
		return fmt.Errorf("%s has no Chart.yaml or no values.yaml", dir)
	}
	// helm wants Chart.yaml first.
	for i, c := range contents {
		if c.to == "Chart.yaml" {
			contents[0], contents[i] = contents[i], contents[0]
		}
	}
	return writeTarGz(o.file("gpuslice-"+o.number()+".tgz"), "gpuslice", contents, o.date)
}

type edit struct{ pattern, line string }

// The parts of a statement of provenance: in-toto's Statement v1 with SLSA's predicate v1.
type (
	digests  map[string]string
	resource struct {
		Name   string  `json:"name,omitempty"`
		URI    string  `json:"uri,omitempty"`
		Digest digests `json:"digest,omitempty"`
	}
	statement struct {
		Type          string     `json:"_type"`
		Subject       []resource `json:"subject"`
		PredicateType string     `json:"predicateType"`
		Predicate     predicate  `json:"predicate"`
	}
	predicate struct {
		BuildDefinition definition `json:"buildDefinition"`
		RunDetails      details    `json:"runDetails"`
	}
	definition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		InternalParameters   map[string]string `json:"internalParameters"`
		ResolvedDependencies []resource        `json:"resolvedDependencies"`
	}
	details struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	}
)

// provenance writes the statement, without a signature: the workflow signs it.
func (o options) provenance() error {
	sums, err := o.sums()
	if err != nil {
		return err
	}
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	for _, f := range sums {
		s.Subject = append(s.Subject, resource{Name: f.name, Digest: digests{"sha256": f.sha256}})
	}
	s.Predicate.BuildDefinition = definition{
		BuildType:          o.home + "/blob/" + path.Join(o.version, "docs/RELEASING.md"),
		ExternalParameters: map[string]string{"command": "make release", "version": o.version, "image": o.image},
		InternalParameters: map[string]string{"go": runtime.Version()},
		ResolvedDependencies: []resource{{
			URI: "git+" + o.home + "@refs/tags/" + o.version, Digest: digests{"gitCommit": o.revision},
		}},
	}
	s.Predicate.RunDetails.Builder.ID = o.home + "/blob/" + path.Join(o.version, "Makefile")
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return o.write("provenance.intoto.json", string(text)+"\n")
}
