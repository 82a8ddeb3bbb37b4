package migrate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/scheduler/choose"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// settings are what the release is configured with.
type settings struct {
	// values are for the chart, only those that differ from its defaults.
	values map[string]any
	// options are how pods will be read with values.
	options request.Options
	// notes are settings without a counterpart.
	notes []string
	// flags are those of gpu-manager.
	flags []string
}

// set sets a value by its path.
func (s *settings) set(value any, path ...string) {
	at := s.values
	for _, key := range path[:len(path)-1] {
		next, is := at[key].(map[string]any)
		if !is {
			next = map[string]any{}
			at[key] = next
		}
		at = next
	}
	at[path[len(path)-1]] = value
}

func (s *settings) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// unless sets a value that is not the chart's default.
func unless[T comparable](s *settings, value, byDefault T, path ...string) {
	var zero T
	if value != byDefault && value != zero {
		s.set(value, path...)
	}
}

// hamiDevices is HAMi's device-config.yaml, for NVIDIA's GPUs.
type hamiDevices struct {
	NVIDIA struct {
		ResourceCountName, ResourceMemoryName, ResourceMemoryPercentageName, ResourceCoreName, ResourcePriorityName string
		DefaultMemory, MemoryFactor, PreConfiguredDeviceMemory                                                      int64
		DefaultCores, DefaultGPUNum, DeviceSplitCount                                                               int
		DeviceMemoryScaling, DeviceCoreScaling                                                                      float64
		EnableNumaTopology                                                                                          bool
		GPUCorePolicy, RuntimeClassName                                                                             string
	} `json:"nvidia"`
}

func (r *release) settings(in *Inventory) (*settings, error) {
	s := &settings{values: map[string]any{}, options: request.DefaultOptions()}
	for _, component := range [][]string{{"agent"}, {"scheduler", "settings"}} {
		s.set(map[string]any{api.LabelMigrated: "true"}, append(component, "nodeSelector")...)
	}
	r.setWriters(s)
	if r.source == Tencent {
		return s, r.ofTencent(s, in)
	}
	return s, r.ofHAMi(s, in)
}

// writers are the users that write the annotations of the release's grants, which gpuslice's policy refuses from others.
func (r *release) writers() []string {
	accounts := []string{r.plugin.Spec.Template.Spec.ServiceAccountName}
	if r.scheduler != nil {
		accounts = append(accounts, r.scheduler.Spec.Template.Spec.ServiceAccountName)
	}
	for i, account := range accounts {
		accounts[i] = fmt.Sprintf("system:serviceaccount:%s:%s", r.plugin.Namespace, cmp.Or(account, "default"))
	}
	slices.Sort(accounts)
	return slices.Compact(accounts)
}

func (r *release) setWriters(s *settings) {
	list := []any{}
	for _, writer := range r.writers() {
		list = append(list, writer)
		if strings.HasSuffix(writer, ":default") {
			s.note("admission.writers has %s, an account that other pods of the namespace can have: give %s its own", writer, r.source)
		}
	}
	s.set(list, "admission", "writers")
	if r.scheduler == nil {
		s.note("the scheduler of %s is not found among the Deployments of namespace %s: add its user to admission.writers, or it can't place pods after gpuslice is installed", r.source, r.plugin.Namespace)
	}
}

func (r *release) ofHAMi(s *settings, in *Inventory) error {
	plugin := r.plugin.Spec.Template.Spec
	var devices hamiDevices
	config, err := in.configMap(r.plugin.Namespace, plugin, "device-config")
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal([]byte(config["device-config.yaml"]), &devices); err != nil {
		return fmt.Errorf("read HAMi's device-config.yaml: %w", err)
	}
	d := &devices.NVIDIA
	for _, resource := range []struct {
		key, name string
		to        *string
	}{
		{"count", d.ResourceCountName, &s.options.Names.Count}, {"memory", d.ResourceMemoryName, &s.options.Names.Memory},
		{"memoryPercentage", d.ResourceMemoryPercentageName, &s.options.Names.MemoryPercentage},
		{"cores", d.ResourceCoreName, &s.options.Names.Cores}, {"priority", d.ResourcePriorityName, &s.options.Names.Priority},
	} {
		if resource.name != "" && resource.name != *resource.to {
			s.set(resource.name, "resourceNames", resource.key)
			*resource.to = resource.name
		}
	}
	given := flags(container(plugin, "nvidia-device-plugin"))
	for flag, to := range map[string]any{"device-split-count": &d.DeviceSplitCount, "device-memory-scaling": &d.DeviceMemoryScaling, "device-cores-scaling": &d.DeviceCoreScaling} {
		if text, has := given[flag]; has { // it overrides the file
			if err := json.Unmarshal([]byte(text), to); err != nil {
				return fmt.Errorf("read --%s=%s of HAMi's device plugin: %w", flag, text, err)
			}
		}
	}
	if config == nil {
		s.note("HAMi's device-config.yaml is not mounted (before HAMi 2.5): compare the names of resources, and the scheduler's defaults")
	}
	unless(s, d.DeviceSplitCount, 10, "agent", "config", "device-split-count")
	unless(s, d.DeviceMemoryScaling, 1, "agent", "config", "device-memory-scaling")
	unless(s, d.DeviceCoreScaling, 1, "agent", "config", "device-cores-scaling")
	unless(s, d.GPUCorePolicy, "default", "agent", "config", "core-policy")
	if given["disable-core-limit"] == "true" {
		s.set("disable", "agent", "config", "core-policy")
	}
	unless(s, given["mig-strategy"], "none", "agent", "config", "mig-strategy")
	s.set([]any{"hami"}, "agent", "config", "legacy-metrics")

	unless(s, d.DefaultMemory, 0, "scheduler", "settings", "defaults", "memoryMiB")
	unless(s, d.DefaultCores, 0, "scheduler", "settings", "defaults", "cores")
	unless(s, d.DefaultGPUNum, 1, "scheduler", "settings", "defaults", "count")
	unless(s, d.MemoryFactor, 1, "scheduler", "settings", "defaults", "memoryFactor")
	s.options.DefaultMemoryMiB, s.options.DefaultCores = d.DefaultMemory, d.DefaultCores
	s.options.DefaultCount, s.options.MemoryFactor = max(1, d.DefaultGPUNum), max(1, d.MemoryFactor)
	s.set([]any{"hami"}, "scheduler", "settings", "legacyMetrics")
	if class := d.RuntimeClassName; class != "" {
		s.set(class, "webhook", "runtimeClass")
	}
	if class := plugin.RuntimeClassName; class != nil {
		unless(s, *class, "nvidia", "agent", "driver", "runtimeClassName")
	}
	base := map[string]any{}
	if d.PreConfiguredDeviceMemory > 0 {
		base["preconfigureddevicememory"] = d.PreConfiguredDeviceMemory
	}
	if d.EnableNumaTopology {
		base["enablenumatopology"] = true
	}
	if err := r.nodeConfig(s, in, base); err != nil {
		return err
	}
	r.ofHAMiScheduler(s)
	return r.selectors(s)
}

// nodeConfig copies HAMi's options by node. An entry applies as a whole here, so that it gets what HAMi sets for all nodes.
func (r *release) nodeConfig(s *settings, in *Inventory, base map[string]any) error {
	data, err := in.configMap(r.plugin.Namespace, r.plugin.Spec.Template.Spec, "deviceconfig")
	if err != nil {
		return err
	}
	var file struct {
		NodeConfig []map[string]any `json:"nodeconfig"`
	}
	if text := data["config.json"]; text != "" {
		if err := json.Unmarshal([]byte(text), &file); err != nil {
			return fmt.Errorf("read HAMi's config.json: %w", err)
		}
	}
	entries := []any{}
	for _, entry := range file.NodeConfig {
		name, _ := entry["name"].(string)
		if !slices.ContainsFunc(in.Nodes, func(n v1.Node) bool { return n.Name == name }) {
			s.note("the entry %q of HAMi's config.json is left out: the cluster has no such node", name)
			continue
		}
		if entry["preconfigureddevicememory"] == 0.0 {
			delete(entry, "preconfigureddevicememory") // the driver's, as without it
		}
		for key, value := range base {
			if _, has := entry[key]; !has {
				entry[key] = value
			}
		}
		entries = append(entries, entry)
	}
	if len(base) > 0 {
		all := map[string]any{"nameglob": "*"}
		for key, value := range base {
			all[key] = value
		}
		entries = append(entries, all)
	}
	if len(entries) > 0 {
		s.set(entries, "agent", "nodeConfig", "nodeconfig")
	}
	return nil
}

func (r *release) extender() *v1.Container {
	if r.scheduler == nil {
		return nil
	}
	spec := r.scheduler.Spec.Template.Spec
	for i := range spec.Containers {
		c := &spec.Containers[i]
		if _, has := flags(c)["node-scheduler-policy"]; has || c.Name == "vgpu-scheduler-extender" {
			return c
		}
	}
	return nil
}

func (r *release) ofHAMiScheduler(s *settings) {
	extender := r.extender()
	if extender == nil {
		s.note("HAMi's scheduler is not found: its policies and its node selector are not read")
		return
	}
	given := flags(extender)
	policy := func(flag, byDefault, setting string, check func(string) error) {
		value := given[flag]
		if err := check(value); value != "" && err != nil {
			s.note("--%s=%s has no counterpart (%v): set scheduler.settings.%s", flag, value, err, setting)
			return
		}
		unless(s, value, byDefault, "scheduler", "settings", setting)
	}
	policy("node-scheduler-policy", "binpack", "nodePolicy", checkNodePolicy)
	policy("gpu-scheduler-policy", "spread", "gpuPolicy", checkGPUPolicy)
	if selector := given["node-label-selector"]; selector != "" {
		s.note("--node-label-selector=%s is left out: gpuslice's pods get the nodes that are switched. Set scheduler.settings.nodeSelector after the migration", selector)
	}
	for _, e := range extender.Env {
		if strings.HasPrefix(e.Name, "NODE_SELECTOR_") {
			s.note("the variable %s=%s is left out: gpuslice's pods get the nodes that are switched. Set scheduler.settings.nodeSelector after the migration", e.Name, e.Value)
		}
	}
	if given["force-overwrite-default-scheduler"] == "false" {
		s.note("--force-overwrite-default-scheduler=false has no counterpart: gpuslice's webhook changes pods with GPUs that name no other scheduler")
	}
}

// selectors copies which pods the webhook changes, without HAMi's own label: a tenant's label exempts no pod here.
func (r *release) selectors(s *settings) error {
	if r.webhook == nil {
		return nil
	}
	for _, w := range r.webhook.Webhooks {
		if w.Name != hamiWebhook {
			continue
		}
		for key, selector := range map[string]*metav1.LabelSelector{"namespaceSelector": w.NamespaceSelector, "objectSelector": w.ObjectSelector} {
			if selector == nil {
				continue
			}
			own := selector.DeepCopy()
			own.MatchExpressions = slices.DeleteFunc(own.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool { return e.Key == api.LabelHAMiWebhook })
			if len(own.MatchLabels)+len(own.MatchExpressions) == 0 {
				continue
			}
			text, err := json.Marshal(own)
			if err != nil {
				return err
			}
			var value map[string]any
			if err := json.Unmarshal(text, &value); err != nil {
				return err
			}
			s.set(value, "webhook", key)
		}
	}
	return nil
}

func (r *release) ofTencent(s *settings, in *Inventory) error {
	s.set("tencent", "agent", "config", "resource-profile")
	s.set([]any{"gpu-manager"}, "agent", "config", "legacy-metrics")
	for i := range r.plugin.Spec.Template.Spec.Containers {
		for flag := range flags(&r.plugin.Spec.Template.Spec.Containers[i]) {
			s.flags = append(s.flags, flag)
		}
	}
	slices.Sort(s.flags)
	if r.scheduler == nil {
		s.note("gpu-admission is not found among the Deployments: if it has a quota, set scheduler.settings.gpuQuota")
		return nil
	}
	for _, v := range r.scheduler.Spec.Template.Spec.Volumes {
		if v.ConfigMap != nil && strings.Contains(v.ConfigMap.Name, "quota") {
			s.set(r.scheduler.Namespace+"/"+v.ConfigMap.Name, "scheduler", "settings", "gpuQuota")
		}
	}
	return nil
}

func checkNodePolicy(text string) error {
	_, err := choose.ParseNodePolicy(text)
	return err
}

func checkGPUPolicy(text string) error {
	_, err := choose.ParseGPUPolicy(text)
	return err
}
