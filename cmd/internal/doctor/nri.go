package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
)

// NRI's request timeout: below shortTimeout a busy node rejects containers, beyond
// longTimeout one plugin that hangs holds up every container of the node, for NRI
// asks about one at a time.
const (
	shortTimeout = time.Second
	longTimeout  = 10 * time.Second
)

func nriTable(sub string, lines ...string) []string {
	return append([]string{"[plugins.'" + pluginNRI + "'" + sub + "]"}, lines...)
}

func checkNRI(_ context.Context, e *exam, v *verdict) {
	if e.runtime.name != "cri-o" { // whose socket is at the same place
		if e.notContainerd(v) {
			return
		}
		if !e.config.nriEnabled() {
			v.fail("NRI is off: the agent can't connect, and no container gets a card", e.config.fix(nriTable("", "disable = false")...)...)
			v.repair(RepairContainerd)
			return
		}
		if setting(e.config, false, pluginNRI, "disable_connections") {
			v.fail("NRI takes no connections (disable_connections)", e.config.fix(nriTable("", "disable_connections = false")...)...)
			v.repair(RepairContainerd)
			return
		}
	}
	socket := e.config.nriSocket()
	info, err := e.stat(socket)
	switch {
	case err != nil:
		v.fail("NRI is on, but its socket is not there: "+oneLine(err), "systemctl restart containerd  # it runs with an older configuration, or not at all")
	case info.Mode()&fs.ModeSocket == 0:
		v.fail(socket+" is not a socket", "remove it, then `systemctl restart containerd`")
	default:
		v.ok("NRI listens on " + socket)
	}
}

func checkNRITimeout(_ context.Context, e *exam, v *verdict) {
	if e.notContainerd(v) {
		return
	}
	fix := func() []string { return e.config.fix(nriTable("", `plugin_request_timeout = "2s"`)...) }
	timeout, err := e.config.requestTimeout()
	if err != nil || timeout < shortTimeout || timeout > longTimeout {
		v.repair(RepairContainerd)
	}
	switch {
	case err != nil:
		v.fail("plugin_request_timeout: "+oneLine(err), fix()...)
	case timeout < shortTimeout:
		v.warn(fmt.Sprintf("plugin_request_timeout is %v: a busy node will reject containers", timeout), fix()...)
	case timeout > longTimeout:
		v.warn(fmt.Sprintf("plugin_request_timeout is %v: a plugin that hangs holds up all containers of the node for as long", timeout), fix()...)
	default:
		v.ok(fmt.Sprintf("plugin_request_timeout is %v", timeout))
	}
}

func checkNRIValidator(_ context.Context, e *exam, v *verdict) {
	if e.notContainerd(v) {
		return
	}
	if e.runtime.version.before(2, 2, 0) {
		v.warn("containerd before 2.2 has no validator: required-plugins annotations mean nothing", "upgrade containerd to 2.2 or newer")
		return
	}
	if !setting(e.config, false, pluginNRI, "default_validator", "enable") {
		v.warn("default_validator is off: required-plugins annotations mean nothing, so a pod that needs a card can start without one while the agent is away",
			e.config.fix(nriTable(".default_validator", "enable = true")...)...)
		v.repair(RepairContainerd)
		return
	}
	if !e.config.requires(nriplugin.PluginName) {
		v.ok("default_validator is on")
		return
	}
	annotation := setting(e.config, "", pluginNRI, "default_validator", "tolerate_missing_plugins_annotation")
	if annotation == "" {
		v.warn("default_validator requires "+nriplugin.PluginName+" of every container, the agent's own too: a node that boots can't start it from a pod",
			e.config.fix(nriTable(".default_validator", `tolerate_missing_plugins_annotation = "gpuslice.io/tolerate-missing-plugins"`)...)...)
		v.repair(RepairContainerd)
		return
	}
	v.ok("default_validator is on and requires " + nriplugin.PluginName + " of every container without the annotation " + annotation)
}

func checkHandlers(_ context.Context, e *exam, v *verdict) {
	if e.notContainerd(v) {
		return
	}
	handlers, byDefault := e.config.nvidiaHandlers(), e.config.defaultHandler()
	isNvidia := byDefault == "nvidia"
	for _, h := range handlers {
		isNvidia = isNvidia || h == byDefault
	}
	guarded := e.config.requires(nriplugin.PluginName) && setting(e.config, false, pluginNRI, "default_validator", "enable") && !e.runtime.version.before(2, 2, 0)
	switch {
	case isNvidia && !guarded:
		v.warn("the default runtime is "+byDefault+": while the agent is away, a container whose image asks for cards gets them",
			append(e.config.fix("[plugins.'"+e.config.criTable()+"'.containerd]", `default_runtime_name = "runc"`),
				"or start the agent with --default-runtime-is-nvidia, and set accept-nvidia-visible-devices-envvar-when-unprivileged = false (see nvidia-toolkit)")...)
	case isNvidia:
		v.ok("the default runtime is " + byDefault + ", and no container starts without the agent; start it with --default-runtime-is-nvidia")
	case len(handlers) > 0:
		v.ok("the default runtime is " + byDefault + "; of NVIDIA are " + strings.Join(handlers, ", "))
	default:
		v.ok("the default runtime is " + byDefault + "; none is NVIDIA's, so cards come by CDI")
	}
}

// toolkitConfig is where NVIDIA's container toolkit has its configuration.
const toolkitConfig = "/etc/nvidia-container-runtime/config.toml"

func checkToolkit(_ context.Context, e *exam, v *verdict) {
	const key = "accept-nvidia-visible-devices-envvar-when-unprivileged"
	data, err := fs.ReadFile(e.Host, name(toolkitConfig))
	handlers := len(e.config.nvidiaHandlers()) > 0 || path.Base(e.config.defaultHandler()) == "nvidia"
	var config map[string]any
	if err == nil {
		err = toml.Unmarshal(data, &config)
	}
	accepts, isSet := config[key].(bool)
	switch {
	case isSet && !accepts:
		v.ok(key + " is false")
	case !handlers && !e.exists(toolkitConfig):
		v.ok(toolkitConfig + " is not there, and no runtime of NVIDIA's is configured")
	case err != nil && e.exists(toolkitConfig):
		v.fail(toolkitConfig+": "+oneLine(err), "mend the file, or run gpuslice doctor as root")
	default:
		v.warn(key+" is true: under NVIDIA's runtime, an image's or a pod's own NVIDIA_VISIBLE_DEVICES opens cards wherever the agent isn't asked (docker, nerdctl, or while it is away)",
			"in "+toolkitConfig+", above its first [table]:", "  "+key+" = false")
	}
}
