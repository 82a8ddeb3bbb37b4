package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/procfs"
	ociruntime "github.com/gpuslice/gpuslice/oci/runtime"
)

// checkStateDir warns below these amounts of free space.
const (
	littleBytes  = 64 << 20
	littleInodes = 1000
)

// AgentUnit is the agent's systemd unit of hosts without Kubernetes.
const AgentUnit = "gpuslice-agent.service"

// StateMountUnit is the path of the tmpfs' systemd unit, and StateMountDir its mount point.
const (
	StateMountUnit = "/etc/systemd/system/run-gpuslice.mount"
	StateMountDir  = "/run/gpuslice"
)

var stateMount = []string{
	"on a node without GPU containers (the mount would hide their ledger):",
	"  cp install/run-gpuslice.mount /etc/systemd/system/",
	"  systemctl daemon-reload && systemctl enable --now run-gpuslice.mount",
}

func checkStateDir(_ context.Context, e *exam, v *verdict) {
	dir := e.o.StateDir
	info, err := e.stat(dir)
	if errors.Is(err, fs.ErrNotExist) && e.needsOnlyEngines() {
		v.ok(dir + " does not exist: the first container with a share creates it")
		return
	}
	if err != nil {
		v.fail(oneLine(err), append([]string{"the agent creates it at its start; mount a tmpfs there first,"}, stateMount...)...)
		return
	}
	f, err := e.Filesystem(dir)
	if err != nil {
		v.fail(oneLine(err), asRoot)
		return
	}
	isOwn := true
	if f.Type != unix.TMPFS_MAGIC && f.Type != unix.RAMFS_MAGIC {
		isOwn = false
		v.warn(dir+" is not on a tmpfs: container creation waits for the disk", stateMount...)
	} else if sameFilesystem(e, dir, path.Dir(dir)) {
		isOwn = false
		v.warn(dir+" is on the tmpfs of "+path.Dir(dir)+": a container that fills its usage file fills it for the whole node", stateMount...)
	} else {
		v.ok(dir + " is a separate tmpfs")
	}
	if !isOwn && dir == StateMountDir && !e.exists(StateMountUnit) {
		v.repair(RepairStateMount)
	}
	mode := info.Mode().Perm()
	if mode&0o022 != 0 {
		v.fail(fmt.Sprintf("writable by other users (mode %#o)", mode), "chmod 0711 "+dir)
	} else if mode&0o044 != 0 {
		v.warn(fmt.Sprintf("readable by other users (mode %#o)", mode), "chmod 0711 "+dir)
	}
	owner := e.statT(dir)
	isOthers := owner != nil && owner.Uid != 0
	if isOthers {
		v.fail(fmt.Sprintf("owned by user %d", owner.Uid), "chown root: "+dir)
	}
	if mode&0o066 != 0 || isOthers {
		v.repair(RepairStateDirMode)
	}
	switch left := fmt.Sprintf("%d MiB and %d inodes free", f.FreeBytes>>20, f.FreeInodes); {
	case f.FreeBytes == 0 || f.FreeInodes == 0:
		v.fail(left+": no container can get a GPU", "mount -o remount,size=1G,nr_inodes=64k "+dir)
	case f.FreeBytes < littleBytes || f.FreeInodes < littleInodes:
		v.warn(left, "mount -o remount,size=1G,nr_inodes=64k "+dir)
	default:
		v.ok(left)
	}
}

func sameFilesystem(e *exam, a, b string) bool {
	statA, statB := e.statT(a), e.statT(b)
	return statA != nil && statB != nil && statA.Dev == statB.Dev
}

func checkLibraryDir(_ context.Context, e *exam, v *verdict) {
	dir := e.o.LibraryDir
	f, err := e.Filesystem(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		v.fail(dir+" does not exist", e.installsLimiter()+", or set --library-dir")
		return
	case err != nil:
		v.fail(oneLine(err), asRoot)
		return
	case f.NoExec:
		v.fail(dir+" is on a noexec mount: containers can't load the limiter from it", "mount -o remount,exec MOUNTPOINT, or set another --library-dir of the agent")
	}
	libraries, _ := fs.Glob(e.Host, name(dir)+"/libvgpu-*.so")
	libraries = slices.DeleteFunc(libraries, func(file string) bool {
		return strings.Count(path.Base(file), "-") > 1
	})
	if len(libraries) == 0 || !e.exists(path.Join(dir, "ld.so.preload")) {
		v.fail(dir+" contains no limiter", e.installsLimiter())
		return
	}
	if len(v.found) == 0 {
		v.ok(dir + " contains " + path.Base(libraries[len(libraries)-1]))
	}
}

// installsLimiter is the step that fills the library directory.
func (e *exam) installsLimiter() string {
	if e.needsOnlyEngines() {
		return "gpuslice install " + string(e.o.Uses[0])
	}
	return "start gpuslice-agent, which installs it (--library)"
}

// WithoutAgent is what nothing checks on a host without an agent.
const WithoutAgent = ociruntime.WithoutAgent

type agentProcess struct {
	pid   int // 0 if unknown
	inPod bool
	args  []string
}

func checkAgent(ctx context.Context, e *exam, v *verdict) {
	agent, runs := e.findAgent()
	if !runs && e.needsOnlyEngines() {
		v.warn("gpuslice-agent does not run: "+WithoutAgent, "systemctl enable --now "+AgentUnit+"  # gpuslice install "+string(e.o.Uses[0])+" writes the unit")
		return
	}
	if !runs {
		v.fail("gpuslice-agent does not run: no lock on "+path.Join(e.o.StateDir, "agent.lock"),
			"systemctl start gpuslice-agent; its log: journalctl -u gpuslice-agent",
			"if installed by the chart: "+agent.pods())
		return
	}
	if e.o.HealthAddress == "" {
		v.ok("running; health not checked")
		return
	}
	where, restart, look := "running", "restart it, or set --health-address as for the agent", "see the reason above, and the agent's log"
	if agent.inPod {
		where, restart = "running in a pod", "kubectl -n gpuslice-system delete pod POD; or set --health-address as for the agent"
		look = "kubectl -n gpuslice-system logs POD"
	}
	fix := func(line string) []string {
		if agent.inPod {
			return []string{agent.pods(), line}
		}
		return []string{line}
	}

	pid, address := 0, e.o.HealthAddress
	if elsewhere, err := e.inOtherNetwork(agent.pid); err != nil && agent.inPod {
		v.warn(where+"; readiness unknown: "+oneLine(err), fix("run gpuslice doctor as root, on the node")...)
		return
	} else if elsewhere {
		pid = agent.pid
		if own, set := agent.flag("health-address"); set {
			address = reachable(own)
		}
		if address == "" {
			v.ok(where + "; it has no health endpoint")
			return
		}
	}
	switch status, body, err := e.Get(ctx, pid, "http://"+address+"/readyz"); {
	case pid != 0 && errors.Is(err, fs.ErrPermission):
		v.warn(where+"; readiness unknown: "+oneLine(err), fix("run gpuslice doctor as root, on the node")...)
	case err != nil:
		v.fail(where+" and does not answer: "+oneLine(err), fix(restart)...)
	case status != http.StatusOK:
		v.fail(fmt.Sprintf("%s and not ready: %s", where, strings.ReplaceAll(body, "\n", "; ")), fix(look)...)
	default:
		v.ok(where + " and ready")
	}
}

// pods is the command that lists this node's agent pod, with the names in docs/INSTALL.md.
func (a agentProcess) pods() string {
	line := "kubectl -n gpuslice-system get pods -l app.kubernetes.io/component=agent -o wide"
	if node, _ := a.flag("node-name"); node != "" {
		line += " --field-selector spec.nodeName=" + node
	}
	return line
}

func (a agentProcess) flag(name string) (value string, set bool) {
	for i, arg := range a.args {
		if arg == "--"+name && i+1 < len(a.args) {
			value, set = a.args[i+1], true
		} else if v, is := strings.CutPrefix(arg, "--"+name+"="); is {
			value, set = v, true
		}
	}
	return value, set
}

// reachable converts a listen address to one to connect to.
func reachable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); host == "" || ip.Equal(net.IPv4zero) {
		host = "127.0.0.1"
	} else if ip.Equal(net.IPv6unspecified) {
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}

// AgentRuns reports whether an agent holds the lock of a state directory.
func AgentRuns(h Host, stateDir string) bool {
	e := &exam{Host: h, o: Options{StateDir: stateDir}}
	_, runs := e.findAgent()
	return runs
}

// AgentMetrics returns the process and the address of the agent's metrics and view; no address if none is known. The
// process is 0 if it has this network.
func AgentMetrics(h Host, stateDir string) (pid int, address string) {
	e := &exam{Host: h, o: Options{StateDir: stateDir}}
	agent, runs := e.findAgent()
	if !runs {
		return 0, ""
	}
	address = defaultMetricsAddress
	if own, set := agent.flag("metrics-address"); set {
		address = own
	}
	elsewhere, err := e.inOtherNetwork(agent.pid)
	if address == "" || err != nil {
		return 0, ""
	}
	if elsewhere {
		pid = agent.pid
	}
	return pid, reachable(address)
}

// defaultMetricsAddress is the agent's.
const defaultMetricsAddress = ":9394"

// lockReads is how many times findAgent reads /proc/locks, which can lack a lock.
const lockReads = 10

// findAgent finds the process with the agent's lock. To try the lock could stop an agent that starts.
func (e *exam) findAgent() (a agentProcess, runs bool) {
	s := e.statT(path.Join(e.o.StateDir, "agent.lock"))
	if s == nil {
		return a, false
	}
	for range lockReads {
		locks, err := fs.ReadFile(e.Host, "proc/locks")
		if err != nil {
			return a, false
		}
		if pid, held := procfs.LockedBy(string(locks), s.Dev, s.Ino); held && pid > 0 {
			return e.process(pid), true
		} else if held {
			return a, true
		}
	}
	return a, false
}

func (e *exam) process(pid int) agentProcess {
	a := agentProcess{pid: pid}
	dir := "proc/" + strconv.Itoa(pid)
	if data, err := fs.ReadFile(e.Host, dir+"/cmdline"); err == nil {
		a.args = strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
	}
	if data, err := fs.ReadFile(e.Host, dir+"/cgroup"); err == nil {
		// systemd: /kubepods.slice/kubepods-burstable.slice/…
		a.inPod = slices.ContainsFunc(strings.FieldsFunc(string(data), func(r rune) bool { return r == '/' || r == '\n' }), func(name string) bool {
			return name == "kubepods" || name == "kubepods.slice"
		})
	}
	return a
}

func (e *exam) inOtherNetwork(pid int) (bool, error) {
	if pid == 0 {
		return false, nil
	}
	own, err := e.Network(0)
	if err != nil {
		return false, err
	}
	its, err := e.Network(pid)
	return err == nil && its != own, err
}
