package quota

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

// ConfigMapKey is the quota's key in gpu-manager's ConfigMap.
const ConfigMapKey = "gpu_quota"

// GPUs is gpu-manager's quota: GPUs by namespace, model and node pool. Namespaces without an entry are not
// limited.
type GPUs struct {
	namespaces map[string]*allowance
	unreadable error
}

// Unreadable is a quota that was never readable: all namespaces are blocked until it is.
func Unreadable(reason error) *GPUs { return &GPUs{unreadable: reason} }

type allowance struct {
	// Pools are the node pools it may use; none: any.
	Pools []string `json:"pool"`
	// Models are the numbers of GPUs; other models are not allowed.
	Models map[string]int `json:"quota"`
}

const (
	maxConfigBytes = 1 << 20 // a ConfigMap's
	maxGPUs        = math.MaxInt32
)

// ParseGPUs reads the ConfigMap's value: {"<namespace>":{"pool":["public"],"quota":{"M40":2}}}. On an
// error, callers keep the previous quota, or use Unreadable.
func ParseGPUs(value string) (*GPUs, error) {
	if len(value) > maxConfigBytes {
		return nil, fmt.Errorf("quota %s: %d bytes: more than the limit of %d", ConfigMapKey, len(value), maxConfigBytes)
	}
	c := &GPUs{}
	decoder := json.NewDecoder(strings.NewReader(value))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c.namespaces); err != nil {
		text := err.Error() // repeats input of any length
		return nil, fmt.Errorf("quota %s: invalid JSON: %s", ConfigMapKey, text[:min(len(text), 256)])
	}
	if c.namespaces == nil {
		return nil, fmt.Errorf("quota %s: null: use {} to limit no namespace", ConfigMapKey)
	}
	if decoder.More() {
		return nil, fmt.Errorf("quota %s: data after the JSON", ConfigMapKey)
	}
	for namespace, a := range c.namespaces {
		if a == nil {
			return nil, fmt.Errorf("quota %s: namespace %q: null: omit the namespace if it is not limited", ConfigMapKey, namespace)
		}
		for model, n := range a.Models {
			if n < 0 || n > maxGPUs {
				return nil, fmt.Errorf("quota %s: namespace %q: model %q: %d GPUs: must be from 0 to %d", ConfigMapKey, namespace, model, n, maxGPUs)
			}
		}
	}
	return c, nil
}

func (c *GPUs) of(namespace string) *allowance {
	if c == nil {
		return nil
	}
	return c.namespaces[namespace]
}

// CheckNode checks the charge against gpu-manager's quota on a node with these labels. Errors are *Error.
func (a *Account) CheckNode(labels map[string]string, c Charge) error {
	if a.gpus != nil && a.gpus.unreadable != nil {
		return &Error{Namespace: a.Namespace, What: fmt.Sprintf("%v: no namespace gets GPUs until it is fixed", a.gpus.unreadable)}
	}
	allowed := a.gpus.of(a.Namespace)
	if allowed == nil {
		return nil
	}
	if pool := labels[api.LabelTencentPool]; len(allowed.Pools) > 0 && !slices.Contains(allowed.Pools, pool) {
		return &Error{Namespace: a.Namespace,
			What: fmt.Sprintf("the node's pool (label %s) is %q, and the namespace may use only %s", api.LabelTencentPool, pool,
				strings.Join(allowed.Pools, ", "))}
	}
	model := labels[api.LabelTencentModel]
	limit, ok := allowed.Models[model]
	switch {
	case !ok:
		return &Error{Namespace: a.Namespace,
			What: fmt.Sprintf("the namespace has no quota for the node's model %q (label %s)", model, api.LabelTencentModel)}
	case a.models[model]+c.GPUPercent > int64(limit)*100:
		return &Error{Namespace: a.Namespace, What: fmt.Sprintf("GPUs of model %s in percent", model),
			Requested: c.GPUPercent, Used: a.models[model], Limit: int64(limit) * 100}
	}
	return nil
}
