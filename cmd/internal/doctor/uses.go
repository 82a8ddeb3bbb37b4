package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/oci/request"
)

// Use is what a host is for; it selects the checks.
type Use string

const (
	Kubernetes Use = "kubernetes"
	Docker     Use = "docker"
	Podman     Use = "podman"
)

// Uses are all uses.
var Uses = []Use{Kubernetes, Docker, Podman}

// The files of the engines' configurations.
const (
	DockerConfig = "/etc/docker/daemon.json"
	PodmanConfig = "/etc/containers/containers.conf.d/gpuslice.conf"
	podmanHooks  = "/usr/share/containers/oci/hooks.d"
)

// detectUses prefers a kubelet and the engines that gpuslice was installed for to those that are only there.
func (e *exam) detectUses() []Use {
	var installed, present []Use
	if e.exists(e.o.KubeletDir) {
		installed = append(installed, Kubernetes)
	}
	if c, err := e.docker(); err == nil && c.Runtimes[Name].Path != "" {
		installed = append(installed, Docker)
	} else if err == nil || e.exists("/run/docker.sock") || e.exists("/var/run/docker.sock") {
		present = append(present, Docker)
	}
	if e.exists(PodmanConfig) {
		installed = append(installed, Podman)
	} else if e.exists("/usr/bin/podman") {
		present = append(present, Podman)
	}
	switch {
	case len(installed) > 0:
		return installed
	case len(present) > 0:
		return present
	}
	return []Use{Kubernetes}
}

func (e *exam) isFor(uses ...Use) bool {
	return slices.ContainsFunc(uses, func(u Use) bool { return slices.Contains(e.o.Uses, u) })
}

func (e *exam) needsOnlyEngines() bool { return !e.isFor(Kubernetes) }

// Name is gpuslice's runtime in the engines' configurations.
const Name = "gpuslice"

type dockerRuntime struct {
	Path string `json:"path"`
	Type string `json:"runtimeType"`
}

type dockerConfig struct {
	Default  string                   `json:"default-runtime"`
	Runtimes map[string]dockerRuntime `json:"runtimes"`
}

func (e *exam) docker() (c dockerConfig, err error) {
	data, err := fs.ReadFile(e.Host, name(DockerConfig))
	if err == nil && len(data) > 0 {
		err = json.Unmarshal(data, &c)
	}
	return c, err
}

const installDocker = "gpuslice install docker && systemctl reload docker"

func checkDocker(_ context.Context, e *exam, v *verdict) {
	c, err := e.docker()
	ours, is := c.Runtimes[Name]
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		v.fail(DockerConfig+": "+oneLine(err), "fix the file: docker can't read it either")
		return
	case !is:
		v.fail(DockerConfig+" has no runtime "+Name, installDocker)
		return
	}
	if e.checkProgram(v, ours.Path, "gpuslice install docker --from DIR") {
		v.ok("runtime " + Name + " is " + ours.Path)
	}
	const beside = "containers get whole GPUs, which the ledger does not know"
	var others []string
	for name, r := range c.Runtimes {
		if isNvidiaProgram(r.Path) {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	switch {
	case slices.Contains(others, c.Default) || c.Default == "nvidia":
		v.fail("the default runtime "+c.Default+" is NVIDIA's: without --runtime "+Name+", "+beside, "gpuslice install docker --set-default && systemctl restart docker")
	case len(others) > 0:
		v.warn("the runtime "+strings.Join(others, ", ")+" is NVIDIA's: with it, "+beside,
			"remove runtimes."+others[0]+" from "+DockerConfig+", or start with it only containers that may have whole GPUs")
	case c.Default == Name:
		v.ok("it is the default")
	}
	if e.exists("/usr/bin/nvidia-container-runtime-hook") && c.Default != Name {
		v.warn("`docker run --gpus` of other runtimes runs nvidia-container-runtime-hook: "+beside,
			"gpuslice install docker --set-default && systemctl reload docker")
	}
}

func isNvidiaProgram(program string) bool {
	return strings.HasPrefix(path.Base(program), "nvidia-container-runtime")
}

func checkPodman(_ context.Context, e *exam, v *verdict) {
	const fix = "gpuslice install podman"
	var c struct {
		Engine struct {
			Runtimes map[string][]string `toml:"runtimes"`
		} `toml:"engine"`
	}
	data, err := fs.ReadFile(e.Host, name(PodmanConfig))
	if err == nil {
		err = toml.Unmarshal(data, &c)
	}
	programs := c.Engine.Runtimes[Name]
	switch {
	case errors.Is(err, fs.ErrNotExist):
		v.fail(PodmanConfig+" does not exist: podman has no runtime "+Name, fix)
		return
	case err != nil:
		v.fail(PodmanConfig+": "+oneLine(err), fix)
		return
	case len(programs) == 0:
		v.fail(PodmanConfig+" has no runtime "+Name, fix)
		return
	}
	if e.checkProgram(v, programs[0], "gpuslice install podman --from DIR") {
		v.ok("runtime " + Name + " is " + programs[0])
	}
	if hooks, _ := fs.Glob(e.Host, name(podmanHooks)+"/50-gpuslice-*.json"); len(hooks) > 0 {
		v.ok("hooks for containers of other runtimes are in " + podmanHooks)
	} else {
		v.ok("no hooks: containers of other runtimes get no GPU from requests")
	}
	if nvidia := path.Join(podmanHooks, "oci-nvidia-hook.json"); e.exists(nvidia) {
		v.warn(nvidia+" gives containers whole GPUs, which the ledger does not know", "rm "+nvidia)
	}
}

// checkProgram fails for a file that can't be run.
func (e *exam) checkProgram(v *verdict, program, fix string) bool {
	info, err := e.stat(program)
	switch {
	case err != nil:
		v.fail(oneLine(err), fix)
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		v.fail(program+" is not a program", fix)
	default:
		return true
	}
	return false
}

// checkRequests checks the operator's configuration, and the runtimes that create containers.
func checkRequests(_ context.Context, e *exam, v *verdict) {
	c := request.DefaultConfig()
	data, err := fs.ReadFile(e.Host, name(api.RuntimeConfig))
	if err == nil {
		c, err = request.Parse(api.RuntimeConfig, data)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		v.ok(api.RuntimeConfig + " does not exist: a container can request any share")
	case err != nil:
		v.fail("no container is created: "+oneLine(err), "fix "+api.RuntimeConfig)
		return
	case c.Maximum == (request.Limit{}):
		v.ok(api.RuntimeConfig + " is valid; it sets no maximum")
	default:
		v.ok(api.RuntimeConfig + " is valid, with a maximum")
	}
	for _, runtime := range c.Runtimes {
		for _, dir := range []string{"", "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
			if file := path.Join(dir, runtime); path.IsAbs(file) && e.exists(file) {
				v.ok("containers are created by " + file)
				return
			}
		}
	}
	v.fail(fmt.Sprintf("none of the runtimes that create containers exists: %s", strings.Join(c.Runtimes, ", ")),
		"install runc or crun, or set runtimes in "+api.RuntimeConfig)
}

// checkUser is the only check that names the missing rights.
func checkUser(_ context.Context, e *exam, v *verdict) {
	if !e.IsRoot() {
		v.warn("not root: what only root can read is unknown below", asRoot)
	}
}

const asRoot = "run gpuslice doctor as root"
