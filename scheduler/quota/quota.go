// Package quota counts what namespaces may have and use of GPUs: Kubernetes' ResourceQuota on memory and
// cores, which Kubernetes can't enforce because the amounts are per GPU, and gpu-manager's quota of GPUs, from
// a ConfigMap. Use is counted from placements and reservations only.
package quota

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// Charge is what a pod takes of the quotas.
type Charge struct {
	// MemoryMiB and Cores are sums over all GPUs, for ResourceQuotas.
	MemoryMiB int64
	Cores     int64
	// GPUPercent is for gpu-manager's quota: 100 per GPU.
	GPUPercent int64
	// Model is the node's api.LabelTencentModel.
	Model string
	// Class is the pod's.
	Class scheduler.Class
}

// Of returns the charge of placed containers: the peak, counted like scheduler.Uses, over all GPUs. gpuMiB
// returns a GPU's memory; 0: unknown.
func Of(kinds []scheduler.Kind, shares [][]grant.Share, model string, gpuMiB func(uuid string) int64) Charge {
	return peak(kinds, model, func(i int) (c Charge) {
		if i < len(shares) {
			for _, s := range shares[i] {
				c = c.add(Charge{MemoryMiB: s.MemoryMiB, Cores: int64(s.CorePercent),
					GPUPercent: GPUPercent(s.CorePercent, s.MemoryMiB, gpuMiB(s.UUID))}, 1)
			}
		}
		return c
	})
}

// Requested returns the charge of a request on GPUs of gpuMiB each. With 0 it is the minimum on any node.
func Requested(r *request.Request, model string, gpuMiB int64) Charge {
	return peak(r.Kinds, model, func(i int) Charge {
		a := &r.Containers[i]
		each := Charge{MemoryMiB: a.Memory(gpuMiB), Cores: int64(a.Cores), GPUPercent: int64(a.Cores)}
		if a.GPUs > 0 && a.Cores == 0 && gpuMiB > 0 {
			each.GPUPercent = GPUPercent(0, each.MemoryMiB, gpuMiB)
		}
		return Charge{}.add(each, int64(a.GPUs))
	})
}

// peak starts the containers in their order and returns the highest sum of those that run together.
func peak(kinds []scheduler.Kind, model string, charge func(i int) Charge) Charge {
	var most, running Charge
	for _, apps := range []bool{false, true} {
		for i, kind := range kinds {
			if (kind == scheduler.App) != apps {
				continue
			}
			c := running.add(charge(i), 1)
			most.MemoryMiB, most.Cores = max(most.MemoryMiB, c.MemoryMiB), max(most.Cores, c.Cores)
			most.GPUPercent = max(most.GPUPercent, c.GPUPercent)
			if kind != scheduler.Init {
				running = c
			}
		}
	}
	most.Model = model
	return most
}

// GPUPercent is a share's part of a GPU: its cores; without a limit its memory, rounded up.
func GPUPercent(cores int, mib, gpuMiB int64) int64 {
	switch {
	case cores > 0:
		return int64(cores)
	case gpuMiB <= 0 || mib >= gpuMiB:
		return 100
	}
	return (mib*100 + gpuMiB - 1) / gpuMiB
}

// add returns the sum of c and n times d, without Model and Class.
func (c Charge) add(d Charge, n int64) Charge {
	return Charge{MemoryMiB: c.MemoryMiB + n*d.MemoryMiB, Cores: c.Cores + n*d.Cores, GPUPercent: c.GPUPercent + n*d.GPUPercent}
}

func (c Charge) empty() bool { return c.MemoryMiB == 0 && c.Cores == 0 && c.GPUPercent == 0 }

const Unlimited = math.MaxInt64

type Limits struct {
	MemoryMiB, Cores int64
}

var NoLimits = Limits{MemoryMiB: Unlimited, Cores: Unlimited}

func (l Limits) least(m Limits) Limits {
	return Limits{MemoryMiB: min(l.MemoryMiB, m.MemoryMiB), Cores: min(l.Cores, m.Cores)}
}

// Quota is a ResourceQuota.
type Quota struct {
	Limits
	Scope Scope
	// Pool is the name of the pool of quotas that lend each other what they do not use; empty: none.
	Pool string
}

func (q *Quota) plain() bool { return len(q.Scope) == 0 && q.Pool == "" }

// Scope selects the pods that a quota counts: those that meet all requirements.
type Scope []Requirement

// Requirement has Kubernetes' names and values.
type Requirement struct {
	Name, Operator string
	Values         []string
}

// Exists is the operator of the scopes that have no values.
const Exists = "Exists"

// Matches decides as Kubernetes' evaluator for pods does: an unknown scope selects none.
func (s Scope) Matches(c scheduler.Class) bool {
	return !slices.ContainsFunc(s, func(r Requirement) bool { return !r.matches(c) })
}

func (r *Requirement) matches(c scheduler.Class) bool {
	switch r.Name {
	case "Terminating":
		return c.Terminating
	case "NotTerminating":
		return !c.Terminating
	case "BestEffort":
		return c.BestEffort
	case "NotBestEffort":
		return !c.BestEffort
	case "CrossNamespacePodAffinity":
		return c.CrossNamespace
	case "PriorityClass":
		in := c.PriorityClass != "" && slices.Contains(r.Values, c.PriorityClass)
		switch r.Operator {
		case Exists:
			return c.PriorityClass != ""
		case "DoesNotExist":
			return c.PriorityClass == ""
		case "In":
			return in
		case "NotIn":
			return !in
		}
	}
	return false
}

// FromHard reads spec.hard of a ResourceQuota: "limits." or "requests." plus the resource name, the lower
// of both. Kubernetes can't enforce these, because amounts are per GPU.
//
// An unreadable limit becomes 0, so that nothing exceeds what was meant, and is reported in the error.
func FromHard(hard map[string]scheduler.Amount, o request.Options) (Limits, error) {
	l := NoLimits
	var problem error
	for _, f := range [...]struct {
		name   string
		factor int64
		to     *int64
	}{
		{o.Names.Memory, max(o.MemoryFactor, 1), &l.MemoryMiB},
		{o.Names.Cores, 1, &l.Cores},
	} {
		if f.name == "" {
			continue
		}
		for _, prefix := range []string{"limits.", "requests."} {
			amount, ok := hard[prefix+f.name]
			switch {
			case !ok:
			case amount.Invalid != "" || amount.Value < 0:
				*f.to = 0
				problem = errors.Join(problem, fmt.Errorf("%s%s: %s: must be an integer of at least 0", prefix, f.name,
					cmp.Or(amount.Invalid, strconv.FormatInt(amount.Value, 10))))
			case amount.Value <= math.MaxInt64/f.factor:
				*f.to = min(*f.to, amount.Value*f.factor)
			}
		}
	}
	return l, problem
}

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
