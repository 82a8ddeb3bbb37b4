package nriplugin

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/gpuslice/gpuslice/oci"
)

// intents are the answers of CreateContainer until the validation that follows. Without an intent, the
// container's request was lost.
type intents struct {
	mu      sync.Mutex
	enabled bool // only if the runtime validates
	byID    map[string]*api.ContainerAdjustment
}

func (i *intents) enable(on bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.enabled, i.byID = on, map[string]*api.ContainerAdjustment{}
}

func (i *intents) record(id string, adjust *api.ContainerAdjustment) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.enabled {
		i.byID[id] = adjust
	}
}

func (i *intents) take(id string) (*api.ContainerAdjustment, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	adjust, ok := i.byID[id]
	delete(i.byID, id)
	return adjust, ok
}

func (i *intents) forget(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.byID, id)
}

// ValidateContainerAdjustment compares the adjustment of all plugins with this plugin's. If CreateContainer
// was lost, NRI before 0.12.5 calls it on the closed connection, fails, and refuses the container.
func (p *Plugin) ValidateContainerAdjustment(_ context.Context, req *api.ValidateContainerAdjustmentRequest) error {
	defer p.observe("ValidateContainerAdjustment", time.Now())
	pod, ctr := req.GetPod(), req.GetContainer()
	if slices.Contains(p.ExemptNamespaces, pod.GetNamespace()) {
		return nil
	}
	intent, ok := p.intents.take(ctr.GetId())
	if !ok {
		return p.refused(&reasoned{reasonNotAsked, fmt.Errorf("gpuslice received no request for container %s of pod %s and refuses it; the kubelet retries", ctr.GetName(), podName(pod))})
	}
	if err := compare(intent, req.GetAdjust()); err != nil {
		return p.refused(&reasoned{reasonChanged, fmt.Errorf("gpuslice refuses container %s of pod %s: another NRI plugin changed what was granted: %w", ctr.GetName(), podName(pod), err)})
	}
	return nil
}

func compare(intent, final *api.ContainerAdjustment) error {
	return errors.Join(append(changed(intent, final), foreign(intent, final)...)...)
}

func changed(intent, final *api.ContainerAdjustment) []error {
	var errs []error

	env := map[string]string{}
	for _, e := range final.GetEnv() {
		env[e.GetKey()] = e.GetValue()
	}
	for _, e := range intent.GetEnv() {
		if _, removal := e.IsMarkedForRemoval(); removal {
			continue
		}
		if got, ok := env[e.GetKey()]; !ok || got != e.GetValue() {
			errs = append(errs, fmt.Errorf("variable %s is %q, not %q", e.GetKey(), got, e.GetValue()))
		}
	}

	mounts := mountsByPath(final)
	for path, want := range mountsByPath(intent) {
		if got := mounts[path]; !slices.Equal(got, want) {
			errs = append(errs, fmt.Errorf("mount %s is %q, not %q", path, got, want))
		}
	}

	devices := deviceNumbers(final)
	for path, want := range deviceNumbers(intent) {
		if got := devices[path]; got != want {
			errs = append(errs, fmt.Errorf("device %s is %q, not %q", path, got, want))
		}
	}
	return errs
}

func foreign(intent, final *api.ContainerAdjustment) []error {
	// The rules are from other plugins: NRI copies them into the spec.
	c := oci.Container{DeviceRules: deviceRules(final.GetLinux().GetResources()), RequestNames: oci.HostRequestNames()}
	intended := deviceNumbers(intent)
	for _, d := range final.GetLinux().GetDevices() {
		if _, removal := d.IsMarkedForRemoval(); !removal && intended[d.GetPath()] == "" {
			c.Devices = append(c.Devices, d.ToOCI())
		}
	}
	c.Majors = oci.HostDriverMajorsFor(c)
	for _, d := range final.GetCDIDevices() {
		c.CDIDevices = append(c.CDIDevices, d.GetName())
	}
	intendedMounts := mountsByPath(intent)
	for _, m := range final.GetMounts() {
		if _, removal := m.IsMarkedForRemoval(); !removal && intendedMounts[cleanPath(m.GetDestination())] == nil {
			c.Mounts = append(c.Mounts, m.ToOCI(nil))
		}
	}
	c.Annotations = final.GetAnnotations()
	ours := map[string]bool{}
	for _, e := range intent.GetEnv() {
		ours[e.GetKey()] = true
	}
	for _, e := range final.GetEnv() {
		if _, removal := e.IsMarkedForRemoval(); !removal && !ours[e.GetKey()] {
			c.Env = append(c.Env, e.ToOCI())
		}
	}

	var errs []error
	if reason, holds := oci.HasGPU(c); holds {
		errs = append(errs, errors.New(reason+", which was not granted"))
	}
	for _, m := range c.Mounts {
		if len(intendedMounts) > 0 && oci.OwnedDestination(m.Destination) {
			errs = append(errs, fmt.Errorf("it mounts %s over the limiter's files", m.Destination))
		}
	}
	if oci.RequestsGPU(c) {
		errs = append(errs, errors.New("its environment requests GPUs that were not granted"))
	}
	return errs
}

func mountsByPath(a *api.ContainerAdjustment) map[string][]string {
	mounts := map[string][]string{}
	for _, m := range a.GetMounts() {
		if _, removal := m.IsMarkedForRemoval(); removal {
			continue
		}
		path := cleanPath(m.GetDestination())
		mounts[path] = append(mounts[path], fmt.Sprintf("%s %s %s", m.GetType(), m.GetSource(), strings.Join(m.GetOptions(), ",")))
	}
	return mounts
}

func cleanPath(destination string) string { return path.Clean("/" + destination) }

func deviceNumbers(a *api.ContainerAdjustment) map[string]string {
	numbers := map[string]string{}
	for _, d := range a.GetLinux().GetDevices() {
		if _, removal := d.IsMarkedForRemoval(); !removal {
			numbers[d.GetPath()] = fmt.Sprintf("%s %d:%d", d.GetType(), d.GetMajor(), d.GetMinor())
		}
	}
	return numbers
}
