package nriplugin

import (
	"slices"

	"github.com/containerd/nri/pkg/api"

	gpuapi "github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/oci"
)

const anyNamespace = "*"

func (p *Plugin) optsOut(pod *api.PodSandbox, ctr *api.Container) bool {
	return requestsOptOut(ctr) && p.allowsOptOut(pod.GetNamespace())
}

func requestsOptOut(ctr *api.Container) bool {
	return oci.RequestsNoLimiter(oci.Container{Env: ctr.GetEnv()})
}

func (p *Plugin) allowsOptOut(namespace string) bool {
	return slices.Contains(p.OptOutNamespaces, anyNamespace) || slices.Contains(p.OptOutNamespaces, namespace)
}

func (p *Plugin) recordOptOut(pod *api.PodSandbox, ctr *api.Container) {
	switch {
	case !requestsOptOut(ctr):
	case p.allowsOptOut(pod.GetNamespace()):
		p.Log.Warn("container runs without limits: it disables its limiter, and its namespace allows that", "variable", gpuapi.EnvDisableControl,
			"pod", podName(pod), "container", ctr.GetName(), "id", ctr.GetId(), "total", p.optedOut.Add(1))
	default:
		p.Log.Info("container stays limited: its namespace does not allow it to disable its limiter", "variable", gpuapi.EnvDisableControl,
			"pod", podName(pod), "container", ctr.GetName(), "id", ctr.GetId(), "total", p.optOutDenied.Add(1))
	}
}

// OptOuts counts the containers that requested to disable their limiter since the plugin started.
func (p *Plugin) OptOuts() (allowed, denied uint64) {
	return p.optedOut.Load(), p.optOutDenied.Load()
}
