package nriplugin

import (
	"slices"

	"github.com/containerd/nri/pkg/api"

	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/oci"
)

// anyNamespace in SwitchNamespaces lets every pod switch its limiter off.
const anyNamespace = "*"

// mode is how the limits of a container that has a card are enforced.
func (p *Plugin) mode(pod *api.PodSandbox, ctr *api.Container) string {
	if oci.AsksForNoControl(oci.Container{Env: ctr.GetEnv()}) && p.maySwitch(pod.GetNamespace()) {
		return modeNone
	}
	return modePreload
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
// has mounted, for what its namespace may do can have changed since.
func (p *Plugin) modeOf(ctr *api.Container) string {
	for _, m := range ctr.GetMounts() {
		if cleanPath(m.GetDestination()) == limiter.ContainerPreloadPath && m.GetSource() == p.Settings().PreloadPath {
			return modePreload
		}
	}
	return modeNone
}
