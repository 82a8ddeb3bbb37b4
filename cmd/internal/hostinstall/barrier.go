package hostinstall

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
	"github.com/gpuslice/gpuslice/oci/request"
)

// barrier puts gpuslice-runtime in front of NVIDIA's runtime in each handler: a pod without a grant then gets no GPU, also
// while the agent is down.
func (p *plan) barrier(h fs.FS, c doctor.Containerd, o Options, cri, main string, t *target) error {
	nvidia := c.Handlers(doctor.IsNvidiaRuntime)
	ours := c.Handlers(doctor.IsOurRuntime)
	delete(ours, Name)
	if o.RequireNvidia && len(nvidia)+len(ours) == 0 {
		what := "no runtime handler in " + main + ", or in the files that it imports, runs NVIDIA's container runtime"
		if len(c.Files) == 0 {
			what = main + " does not exist"
		}
		return fmt.Errorf("%s: set --config to the configuration file that containerd reads (the chart's barrier.containerdConfig); "+
			"without containerd set the chart's barrier.install=false and use the second way to close the GPUs (docs/INSTALL.md)", what)
	}
	handlers := slices.AppendSeq(slices.Collect(maps.Keys(nvidia)), maps.Keys(ours))
	slices.Sort(handlers)
	for _, handler := range handlers {
		t.settings = append(t.settings, setting{[]string{"plugins", cri, "containerd", "runtimes", handler, "options", "BinaryName"}, o.RuntimePath})
	}
	if len(nvidia) == 0 {
		return nil
	}
	p.runtimeConfig(h, o, lowest(nvidia))
	p.notes = append(p.notes, "a pod without a grant gets no GPU from the runtime handlers "+strings.Join(handlers, ", ")+
		", whether the agent runs or not. Pods in the exemptNamespaces of "+api.RuntimeConfig+" get what they request")
	return nil
}

// lowest prefers the variant of NVIDIA's runtime that reads its mode from its configuration.
func lowest(nvidia map[string]string) string {
	binaries := slices.Sorted(maps.Values(nvidia))
	for _, binary := range binaries {
		if path.Ext(binary) == "" {
			return binary
		}
	}
	return binaries[0]
}

// runtimeConfig writes runtime.yaml if it does not exist; else a note lists what it must contain.
func (p *plan) runtimeConfig(h fs.FS, o Options, nvidia string) {
	text := headline("containerd") + fmt.Sprintf(`# gpuslice-runtime calls this container runtime of NVIDIA.
nvidiaRuntime: %s
# Pods in these namespaces get the GPUs that they request from NVIDIA's runtime, whole GPUs too.
# The agent's namespace must be one of them.
exemptNamespaces: [%s]
# The agent's --state-dir.
stateDir: %s
`, nvidia, strings.Join(o.ExemptNamespaces, ", "), o.StateDir)
	data, err := readFile(h, api.RuntimeConfig)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.targets = append(p.targets, target{path: api.RuntimeConfig, whole: []byte(text)})
		return
	case err == nil:
		var have request.Config
		if have, err = request.Parse(api.RuntimeConfig, data); err == nil &&
			have.NvidiaRuntime == nvidia && have.StateDir == o.StateDir && hasAll(have.ExemptNamespaces, o.ExemptNamespaces) {
			return
		}
	}
	p.notes = append(p.notes, fmt.Sprintf("%s exists and was not changed. It must contain nvidiaRuntime: %s, stateDir: %s and exemptNamespaces: [%s]; otherwise the agent's own pod gets no GPU",
		api.RuntimeConfig, nvidia, o.StateDir, strings.Join(o.ExemptNamespaces, ", ")))
}

func hasAll(have, want []string) bool {
	return !slices.ContainsFunc(want, func(name string) bool { return !slices.Contains(have, name) })
}
