package kube

import (
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"
)

// The configurations of install/scheduler.
const (
	PluginConfig   = "config.yaml"          // gpuslice-scheduler's
	ExtenderConfig = "extender-config.yaml" // of a kube-scheduler that asks our extender
)

// SchedulerConfig is a KubeSchedulerConfiguration. Text returns the first error of all calls.
type SchedulerConfig struct {
	object map[string]any
	err    error
}

// ShippedConfig is one of the configurations that are installed with gpuslice.
func ShippedConfig(file string) *SchedulerConfig {
	c := &SchedulerConfig{}
	text, err := shipped("scheduler", file)
	if err == nil {
		err = yaml.Unmarshal(text, &c.object)
	}
	c.err = err
	return c
}

// StockConfig is kube-scheduler's own.
func StockConfig() *SchedulerConfig {
	return &SchedulerConfig{object: map[string]any{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}}
}

// Set sets a field: strings of the path are keys, numbers are indices.
func (c *SchedulerConfig) Set(value any, path ...any) *SchedulerConfig {
	if c.err == nil {
		c.err = set(c.object, value, path)
	}
	return c
}

func set(in, value any, path []any) error {
	switch key := path[0].(type) {
	case string:
		object, is := in.(map[string]any)
		switch {
		case !is:
			return fmt.Errorf("field %s: %v has no fields", key, in)
		case len(path) == 1:
			object[key] = value
			return nil
		case object[key] == nil:
			object[key] = map[string]any{}
		}
		return set(object[key], value, path[1:])
	case int:
		if list, is := in.([]any); is && key < len(list) && len(path) > 1 {
			return set(list[key], value, path[1:])
		}
	}
	return fmt.Errorf("there is no field %v", path)
}

// Connect sets how the API server is reached.
func (c *SchedulerConfig) Connect(kubeconfig string) *SchedulerConfig {
	return c.Set(kubeconfig, "clientConnection", "kubeconfig")
}

// NoElection makes a scheduler lead from its start.
func (c *SchedulerConfig) NoElection() *SchedulerConfig {
	return c.Set(false, "leaderElection", "leaderElect")
}

// Elect sets the election's durations.
func (c *SchedulerConfig) Elect(lease, renew, retry string) *SchedulerConfig {
	return c.Set(true, "leaderElection", "leaderElect").Set(lease, "leaderElection", "leaseDuration").
		Set(renew, "leaderElection", "renewDeadline").Set(retry, "leaderElection", "retryPeriod")
}

// Ask sets the extender's URL.
func (c *SchedulerConfig) Ask(url string) *SchedulerConfig {
	return c.Set(url, "extenders", 0, "urlPrefix")
}

// Text is YAML.
func (c *SchedulerConfig) Text() (string, error) {
	text, err := yaml.Marshal(c.object)
	if err = errors.Join(c.err, err); err != nil {
		return "", fmt.Errorf("a scheduler's configuration: %w", err)
	}
	return string(text), nil
}
