package nriplugin

import (
	"slices"

	"github.com/containerd/nri/pkg/api"

	"github.com/gpuslice/gpuslice/oci"
)

// anyNamespace in SwitchNamespaces lets every pod switch its limiter off.
const anyNamespace = "*"

// switchesOff says whether a container goes without its limiter: its user wants it so,
// and may.
func (p *Plugin) switchesOff(pod *api.PodSandbox, ctr *api.Container) bool {
	return oci.AsksForNoControl(oci.Container{Env: ctr.GetEnv()}) && p.maySwitch(pod.GetNamespace())
}

// maySwitch says whether the operator lets the pods of a namespace switch their
// limiter off.
func (p *Plugin) maySwitch(namespace string) bool {
	return slices.Contains(p.SwitchNamespaces, anyNamespace) || slices.Contains(p.SwitchNamespaces, namespace)
}

// noteSwitch counts and logs what became of a container's wish to go without limiter.
func (p *Plugin) noteSwitch(pod *api.PodSandbox, ctr *api.Container) {
	switch {
	case !oci.AsksForNoControl(oci.Container{Env: ctr.GetEnv()}):
	case p.maySwitch(pod.GetNamespace()):
		p.Log.Warn("container runs without its limiter: its user switched it off and may", "variable", oci.EnvDisableControl,
			"pod", podName(pod), "container", ctr.GetName(), "id", ctr.GetId(), "total", p.switchedOff.Add(1))
	default:
		p.Log.Info("container stays limited: its user may not switch the limiter off", "variable", oci.EnvDisableControl,
			"pod", podName(pod), "container", ctr.GetName(), "id", ctr.GetId(), "total", p.switchRefused.Add(1))
	}
}

// Switches counts the containers whose users asked for no limiter since the plugin was
// made: those that got none, and those that were limited all the same.
func (p *Plugin) Switches() (switchedOff, refused uint64) {
	return p.switchedOff.Load(), p.switchRefused.Load()
}

// modeOf is how the limits of a container that was made before are enforced: by what it
// has mounted, for what its namespace may do, and the node's limiter mode, can have
// changed since.
func (p *Plugin) modeOf(ctr *api.Container) oci.Enforcement {
	return oci.EnforcementOf(facts(nil, ctr).Mounts, p.Settings())
}
