package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuslice/gpuslice/api"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/request"
	ociruntime "github.com/gpuslice/gpuslice/oci/runtime"
)

// The range of NRI's request timeout. NRI handles one request at a time: a plugin that hangs blocks all containers.
const (
	shortTimeout = time.Second
	longTimeout  = 10 * time.Second
)

func nriTable(sub string, lines ...string) []string {
	return append([]string{"[plugins.'" + PluginNRI + "'" + sub + "]"}, lines...)
}

func checkNRI(_ context.Context, e *exam, v *verdict) {
	if e.runtime.name != "cri-o" {
		if e.notContainerd(v) {
			return
		}
		if !e.config.nriEnabled() {
			v.fail("NRI is off: the agent can't connect, and no container gets a GPU", e.config.fix(nriTable("", "disable = false")...)...)
			v.repair(RepairContainerd)
			return
		}
		if setting(e.config, false, PluginNRI, "disable_connections") {
			v.fail("NRI accepts no connections (disable_connections)", e.config.fix(nriTable("", "disable_connections = false")...)...)
			v.repair(RepairContainerd)
			return
		}
	}
	socket := e.config.nriSocket()
	info, err := e.stat(socket)
	switch {
	case err != nil:
		v.fail("NRI is on, but its socket does not exist: "+oneLine(err), "systemctl restart containerd  # it does not run, or did not read the current configuration")
	case info.Mode()&fs.ModeSocket == 0:
		v.fail(socket+" is not a socket", "remove it, then `systemctl restart containerd`")
	default:
		v.ok("NRI listens on " + socket)
	}
}

func checkNRITimeout(_ context.Context, e *exam, v *verdict) {
	fix := func() []string { return e.config.fix(nriTable("", `plugin_request_timeout = "2s"`)...) }
	timeout, err := e.config.requestTimeout()
	if err != nil || timeout < shortTimeout || timeout > longTimeout {
		v.repair(RepairContainerd)
	}
	switch {
	case err != nil:
		v.fail("plugin_request_timeout: "+oneLine(err), fix()...)
	case timeout < shortTimeout:
		v.warn(fmt.Sprintf("plugin_request_timeout is %v: on a busy node, containers are refused", timeout), fix()...)
	case timeout > longTimeout:
		v.warn(fmt.Sprintf("plugin_request_timeout is %v: a plugin that hangs blocks all container creation on the node for this time", timeout), fix()...)
	default:
		v.ok(fmt.Sprintf("plugin_request_timeout is %v", timeout))
	}
}

func checkNRIValidator(_ context.Context, e *exam, v *verdict) {
	if e.runtime.name == "cri-o" {
		e.checkCRIOValidator(v)
		return
	}
	if e.notContainerd(v) {
		return
	}
	if e.runtime.version.before(2, 2, 0) {
		v.warn("containerd before 2.2 has no validator: required-plugins annotations have no effect", "upgrade containerd to 2.2 or newer")
		return
	}
	if !setting(e.config, false, PluginNRI, "default_validator", "enable") {
		v.warn("default_validator is off: required-plugins annotations have no effect, so that a pod that needs a GPU can start without it while the agent is down",
			e.config.fix(nriTable(".default_validator", "enable = true")...)...)
		v.repair(RepairContainerd)
		return
	}
	if setting(e.config, false, PluginNRI, "default_validator", "reject_oci_hook_adjustment") {
		v.fail("default_validator rejects hooks (reject_oci_hook_adjustment), but gpuslice adds one to each container with a share: no container gets a GPU",
			e.config.fix(nriTable(".default_validator", "reject_oci_hook_adjustment = false")...)...)
		return
	}
	if !e.config.requires(nriplugin.PluginName) {
		v.ok("default_validator is on")
		return
	}
	annotation := setting(e.config, "", PluginNRI, "default_validator", "tolerate_missing_plugins_annotation")
	if annotation == "" {
		v.warn("default_validator requires "+nriplugin.PluginName+" for every container, the agent's too: after a reboot, the agent's pod can't start",
			e.config.fix(nriTable(".default_validator", `tolerate_missing_plugins_annotation = "`+api.AnnotationTolerance+`"`)...)...)
		v.repair(RepairContainerd)
		return
	}
	v.ok("default_validator is on and requires " + nriplugin.PluginName + " for every container without the annotation " + annotation)
}

const (
	crioConfig  = "/etc/crio/crio.conf"
	crioDropIns = "/etc/crio/crio.conf.d"
)

// checkCRIOValidator reads CRI-O's files in its order: a later one overrides single settings.
func (e *exam) checkCRIOValidator(v *verdict) {
	if e.runtime.version.before(1, 34, 0) {
		v.warn("CRI-O before 1.34 has no validator: required-plugins annotations have no effect", "upgrade CRI-O to 1.34 or newer")
		return
	}
	files := []string{name(crioConfig)}
	dropIns, _ := fs.Glob(e.Host, name(crioDropIns)+"/*")
	var c struct {
		CRIO struct {
			NRI struct {
				Validator struct {
					Enable      bool `toml:"nri_enable_default_validator"`
					RejectHooks bool `toml:"nri_validator_reject_oci_hook_adjustment"`
				} `toml:"default_validator"`
			} `toml:"nri"`
		} `toml:"crio"`
	}
	for _, file := range append(files, dropIns...) {
		data, err := fs.ReadFile(e.Host, file)
		if err == nil {
			err = toml.Unmarshal(data, &c)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			v.fail("/"+file+": "+oneLine(err), "fix the file")
			return
		}
	}
	set := func(line string) []string {
		return []string{"in " + crioDropIns + "/90-gpuslice.conf, then `systemctl restart crio`:", "  [crio.nri.default_validator]", "  " + line}
	}
	switch validator := c.CRIO.NRI.Validator; {
	case !validator.Enable:
		v.warn("CRI-O's default validator is off: required-plugins annotations have no effect, so that a pod that needs a GPU can start without it while the agent is down",
			set("nri_enable_default_validator = true")...)
	case validator.RejectHooks:
		v.fail("CRI-O's default validator rejects hooks, but gpuslice adds one to each container with a share: no container gets a GPU",
			set("nri_validator_reject_oci_hook_adjustment = false")...)
	default:
		v.ok("CRI-O's default validator is on")
	}
}

func checkHandlers(_ context.Context, e *exam, v *verdict) {
	handlers, byDefault := e.config.nvidiaHandlers(), e.config.defaultHandler()
	switch {
	case byDefault == "nvidia" || slices.Contains(handlers, byDefault):
		v.ok("the default runtime is " + byDefault + ": start the agent with --default-runtime-is-nvidia")
	case len(handlers) > 0:
		v.ok("the default runtime is " + byDefault + "; NVIDIA's handlers: " + strings.Join(handlers, ", "))
	default:
		v.ok("the default runtime is " + byDefault + "; no handler is NVIDIA's, GPUs are injected with CDI")
	}
}

// checkBarrier checks that pods without a grant can't use NVIDIA's runtime (with a RuntimeClass) while the agent is down.
func checkBarrier(_ context.Context, e *exam, v *verdict) {
	bare := e.config.nvidiaHandlers()
	if byDefault := e.config.defaultHandler(); byDefault == "nvidia" && len(e.config.Handlers(IsOurRuntime)) == 0 && !slices.Contains(bare, byDefault) {
		bare = append(bare, byDefault) // containerd's default
	}
	requires := e.config.requires(nriplugin.PluginName) && setting(e.config, false, PluginNRI, "default_validator", "enable") && !e.runtime.version.before(2, 2, 0)
	_, accepts, _ := e.toolkit()
	switch {
	case len(bare) > 0 && requires && !accepts:
		v.ok("NVIDIA's runtime ignores variables of pods (" + acceptsEnv + " = false), and no pod starts without the agent")
	case len(bare) > 0:
		v.fail("the runtime handlers "+strings.Join(bare, ", ")+" run NVIDIA's runtime directly: while the agent is down, a pod without a grant gets whole GPUs",
			"gpuslice install containerd && systemctl restart containerd  # puts gpuslice-runtime in front of NVIDIA's runtime",
			"otherwise: gpuslice install containerd --require-agent, and in "+toolkitConfig+", before its first [table]:", "  "+acceptsEnv+" = false", "  accept-nvidia-visible-devices-as-volume-mounts = true")
	default:
		e.checkExempt(v)
	}
}

// checkExempt checks that the agent's own pod gets its GPUs through the barrier.
func (e *exam) checkExempt(v *verdict) {
	barrier := e.config.Handlers(IsOurRuntime)
	delete(barrier, "gpuslice") // not a handler of NVIDIA
	if len(barrier) == 0 {
		v.ok("no runtime handler runs NVIDIA's runtime")
		return
	}
	data, err := fs.ReadFile(e.Host, name(api.RuntimeConfig))
	var c request.Config
	if err == nil {
		c, err = request.Parse(api.RuntimeConfig, data)
	}
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		v.fail("the runtime handlers "+strings.Join(slices.Sorted(maps.Keys(barrier)), ", ")+" can't create containers: "+oneLine(err), "fix "+api.RuntimeConfig)
	case len(c.ExemptNamespaces) == 0:
		v.warn("no namespace is exempt in "+api.RuntimeConfig+": an agent that gets the driver from NVIDIA's runtime finds no GPU", "add to "+api.RuntimeConfig+": exemptNamespaces: [gpuslice-system]  # the agent's namespace")
	case e.agentPastBarrier():
		v.fail("gpuslice-runtime is in front of NVIDIA's runtime in containerd's configuration, but the agent's container was created without it: containerd or the agent was not restarted after the install",
			"systemctl restart containerd", "then restart the agent (if installed by the chart): kubectl -n gpuslice-system rollout restart daemonset/gpuslice-agent")
	default:
		v.ok("gpuslice-runtime is in front of NVIDIA's runtime (" + strings.Join(slices.Sorted(maps.Keys(barrier)), ", ") + "); exempt: " + strings.Join(c.ExemptNamespaces, ", "))
	}
}

// agentPastBarrier reports whether the agent's container was created without the barrier, with an older configuration.
func (e *exam) agentPastBarrier() bool {
	agent, _ := e.findAgent()
	environ, err := fs.ReadFile(e.Host, fmt.Sprintf("proc/%d/environ", agent.pid))
	env := strings.Split(string(environ), "\x00")
	asks := slices.ContainsFunc(env, func(v string) bool {
		value, is := strings.CutPrefix(v, api.EnvVisibleDevices+"=")
		return is && value != ""
	})
	return err == nil && agent.inPod && asks && !slices.Contains(env, ociruntime.BarrierEnv+"=1")
}

const toolkitConfig = oci.ToolkitConfig

// acceptsEnv lets variables of all containers request GPUs.
const acceptsEnv = "accept-nvidia-visible-devices-envvar-when-unprivileged"

func (e *exam) toolkit() (config map[string]any, accepts bool, err error) {
	data, err := fs.ReadFile(e.Host, name(toolkitConfig))
	if err == nil {
		err = toml.Unmarshal(data, &config)
	}
	accepts, isSet := config[acceptsEnv].(bool)
	return config, accepts || !isSet, err
}

func checkToolkit(_ context.Context, e *exam, v *verdict) {
	const asMounts = "accept-nvidia-visible-devices-as-volume-mounts"
	config, accepts, err := e.toolkit()
	handlers := len(e.config.nvidiaHandlers()) > 0 || path.Base(e.config.defaultHandler()) == "nvidia"
	switch {
	case !accepts && config[asMounts] != true:
		v.warn(acceptsEnv+" is false, and volume mounts are not read: pods with --device-injection=envvar, and an agent that gets the driver from NVIDIA's runtime, find no GPU",
			"in "+toolkitConfig+", before its first [table]:", "  "+asMounts+" = true")
	case !accepts:
		v.ok(acceptsEnv + " is false")
	case !handlers && !e.exists(toolkitConfig):
		v.ok(toolkitConfig + " not found, and no runtime handler of NVIDIA is configured")
	case err != nil && e.exists(toolkitConfig):
		v.fail(toolkitConfig+": "+oneLine(err), "fix the file, or run gpuslice doctor as root")
	case !handlers:
		v.ok(acceptsEnv + " is true, and no runtime handler runs NVIDIA's runtime directly")
	default:
		v.warn(acceptsEnv+" is true: under NVIDIA's runtime, NVIDIA_VISIBLE_DEVICES of an image or a pod gives access to GPUs if the agent does not check the container (docker, nerdctl, or while the agent is down)",
			"in "+toolkitConfig+", before its first [table]:", "  "+acceptsEnv+" = false", "  "+asMounts+" = true")
	}
	e.checkRequestNames(v)
}

// checkRequestNames finds further variables that request GPUs.
func (e *exam) checkRequestNames(v *verdict) {
	config, _ := fs.ReadFile(e.Host, name(toolkitConfig))
	if names := oci.UnknownRequestNames(string(config)); len(names) > 0 {
		v.warn("swarm-resource names "+strings.Join(names, ", ")+": an agent in a container can't read this setting and does not remove these variables from containers without a grant",
			"remove swarm-resource from "+toolkitConfig+" (it is for Docker Swarm), or run the agent as a systemd service")
	}
}
