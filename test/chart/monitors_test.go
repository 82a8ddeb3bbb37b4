//go:build root

package chart

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/test/golden"
)

// monitor is a PodMonitor or a ServiceMonitor, as far as it matters here.
type monitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector                       metav1.LabelSelector
		PodMetricsEndpoints, Endpoints []endpoint
	}
}

type endpoint struct {
	Port        string
	HonorLabels bool
	Relabelings []struct {
		TargetLabel, Replacement string
		SourceLabels             []string
	}
}

func (m monitor) endpoints() []endpoint {
	return append(m.Spec.PodMetricsEndpoints, m.Spec.Endpoints...)
}

// monitors are those among what was rendered.
func monitors(t *testing.T, text string) (found []monitor) {
	t.Helper()
	for _, d := range documents(text) {
		if !strings.Contains(d, "apiVersion: monitoring.coreos.com/") {
			continue
		}
		var m monitor
		require.NoError(t, yaml.Unmarshal([]byte(d), &m))
		if strings.HasSuffix(m.Kind, "Monitor") {
			require.NotEmpty(t, m.endpoints(), m.Name)
			found = append(found, m)
		}
	}
	return found
}

// target is what Prometheus makes of a monitor's pods: what its series are labelled with.
type target struct {
	Job         string   `json:"job"`
	HonorLabels bool     `json:"honorLabels"`
	Labels      []string `json:"labels"`
}

// targets are those of a monitor, by what the operator makes of it: the job is the Service's name or NAMESPACE/NAME
// of the PodMonitor, and then the monitor's own relabelings follow.
func (m monitor) targets() (all []target) {
	for _, e := range m.endpoints() {
		made := target{Job: m.Namespace + "/" + m.Name, HonorLabels: e.HonorLabels, Labels: []string{}}
		if m.Kind == "ServiceMonitor" {
			made.Job = m.Name
		}
		for _, r := range e.Relabelings {
			if r.TargetLabel == "job" && len(r.SourceLabels) == 0 {
				made.Job = r.Replacement
			} else {
				made.Labels = append(made.Labels, r.TargetLabel)
			}
		}
		all = append(all, made)
	}
	return all
}

// modes are the schedulers that there are.
var modes = []string{"plugin", "extender"}

// Prometheus scrapes ports that exist: the agents', the webhook's and the scheduler's, for each component of
// the scheduler.
func TestMonitorsFindTheirPods(t *testing.T) {
	for mode, want := range map[string][]string{
		"plugin":   {"PodMonitor gpuslice-agent metrics", "ServiceMonitor gpuslice-scheduler https", "PodMonitor gpuslice-webhook https"},
		"extender": {"PodMonitor gpuslice-agent metrics", "PodMonitor gpuslice-extender http", "PodMonitor gpuslice-webhook https"},
	} {
		text := render(t, "gpus", append(variants["monitored"], `scheduler.mode="`+mode+`"`)...)
		all := workloads(objects(t, text))
		var found []string
		for _, m := range monitors(t, text) {
			for _, e := range m.endpoints() {
				there := slices.ContainsFunc(all, func(w workload) bool {
					return maps.Equal(w.selector, m.Spec.Selector.MatchLabels) && slices.Contains(ports(w), e.Port)
				})
				require.True(t, there, "%s: no pod has port %s", m.Name, e.Port)
				found = append(found, m.Kind+" "+m.Name+" "+e.Port)
			}
		}
		require.ElementsMatch(t, want, found, mode)
	}
}

// There is no monitor of what is not installed.
func TestNoMonitorWithoutPods(t *testing.T) {
	text := render(t, "gpus", append(slices.Clone(variants["monitored"]), variants["agent-only"]...)...)
	found := monitors(t, text)
	require.Len(t, found, 1)
	require.Equal(t, "gpuslice-agent", found[0].Name)
}

var jobMatcher = regexp.MustCompile(`up\{job=~"([^"]+)"\}`)

// jobPatterns are what the rules know the jobs by. Prometheus' patterns are of the whole value.
func jobPatterns(t *testing.T) (all []*regexp.Regexp) {
	t.Helper()
	rules, err := os.ReadFile("../../install/monitoring/rules.yaml")
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, m := range jobMatcher.FindAllStringSubmatch(string(rules), -1) {
		if !seen[m[1]] {
			all, seen[m[1]] = append(all, regexp.MustCompile("^(?:"+m[1]+")$")), true
		}
	}
	require.Len(t, all, 2, "the agents' jobs and the schedulers'")
	return all
}

// Whatever a release is called, the alerts of what doesn't answer go by the jobs of its monitors, and there is a
// monitor for each job that the rules know.
func TestJobsOfEveryRelease(t *testing.T) {
	patterns := jobPatterns(t)
	for name, args := range map[string][]string{
		"gpuslice":                        {"gpuslice"},
		"gpuslice-prod":                   {"gpuslice-prod"},
		"a release of another name":       {"gpus"},
		"gpuslice by another name of its": {"gpuslice", "--set-json", `fullnameOverride="foo"`},
	} {
		for _, mode := range modes {
			t.Run(name+", "+mode, func(t *testing.T) {
				args := append([]string{"template"}, args...)
				args = append(args, chartDir, "--namespace", "team-gpus", "--kube-version", "1.36.3", "--set-json", `scheduler.mode="`+mode+`"`)
				for _, v := range variants["monitored"] {
					args = append(args, "--set-json", v)
				}
				text, errs, err := helm(t, args...)
				require.NoError(t, err, errs)
				var jobs []string
				for _, m := range monitors(t, text) {
					for _, made := range m.targets() {
						jobs = append(jobs, made.Job)
						require.Contains(t, made.Labels, "node", "%s: the alerts name the node", m.Name)
						known := 0
						for _, p := range patterns {
							if p.MatchString(made.Job) {
								known++
							}
						}
						require.Equal(t, 1, known, "%s: job %s is of no rule, or of two", m.Name, made.Job)
					}
				}
				require.ElementsMatch(t, []string{"gpuslice-agent", map[string]string{"plugin": "gpuslice-scheduler", "extender": "gpuslice-extender"}[mode], "gpuslice-webhook"}, jobs)
			})
		}
	}
}

// What the monitors make is written down for test/monitoring, which has the rules and the dashboard evaluated on it.
func TestTargets(t *testing.T) {
	byMode := map[string]map[string]target{}
	for _, mode := range modes {
		byMode[mode] = map[string]target{}
		for _, m := range monitors(t, render(t, "gpus", append(variants["monitored"], `scheduler.mode="`+mode+`"`)...)) {
			made := m.targets()
			require.Len(t, made, 1)
			byMode[mode][m.Labels["app.kubernetes.io/component"]] = made[0]
		}
	}
	data, err := json.MarshalIndent(byMode, "", "  ")
	require.NoError(t, err)
	golden.Check(t, "testdata/targets.json", string(data)+"\n")
}
