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
	"syscall"

	"golang.org/x/sys/unix"
)

// agentProcess is the agent that works with the state directory, as the kernel shows it.
type agentProcess struct {
	// pid is 0 where it is not known.
	pid int
	// inPod says that a kubelet keeps it.
	inPod bool
	// args are those it was started with.
	args []string
}

func checkAgent(ctx context.Context, e *exam, v *verdict) {
	agent, runs := e.findAgent()
	if !runs {
		v.fail("no gpuslice-agent holds "+path.Join(e.o.StateDir, "agent.lock"),
			"systemctl start gpuslice-agent, or see why it ended: journalctl -u gpuslice-agent",
			"or, where it is the chart's: "+agent.pods())
		return
	}
	if e.o.HealthAddress == "" {
		v.ok("it runs; its health is not asked for")
		return
	}
	where, mend, look := "it runs", "restart it, or name its --health-address here too", "see what it says above, and its log"
	if agent.inPod {
		where, mend = "it runs in a pod", "kubectl -n gpuslice-system delete pod POD, and the kubelet makes another; or name its --health-address here too"
		look = "kubectl -n gpuslice-system logs POD"
	}
	fix := func(line string) []string {
		if agent.inPod {
			return []string{agent.pods(), line}
		}
		return []string{line}
	}

	// A pod has a network of its own, and its address there is not ours.
	pid, address := 0, e.o.HealthAddress
	if elsewhere, err := e.inOtherNetwork(agent.pid); err != nil && agent.inPod {
		v.warn(where+"; whether it is ready is not known: "+oneLine(err), fix("run gpuslice doctor as root, on the node")...)
		return
	} else if elsewhere {
		pid = agent.pid
		if own, set := agent.flag("health-address"); set {
			address = reachable(own)
		}
		if address == "" {
			v.ok(where + "; it tells nobody of its health")
			return
		}
	}
	switch status, body, err := e.Get(ctx, pid, "http://"+address+"/readyz"); {
	case pid != 0 && errors.Is(err, fs.ErrPermission):
		v.warn(where+"; whether it is ready is not known: "+oneLine(err), fix("run gpuslice doctor as root, on the node")...)
	case err != nil:
		v.fail(where+" and does not answer: "+oneLine(err), fix(mend)...)
	case status != http.StatusOK:
		v.fail(fmt.Sprintf("%s and is not ready: %s", where, strings.ReplaceAll(body, "\n", "; ")), fix(look)...)
	default:
		v.ok(where + " and is ready")
	}
}

// pods is how people find the pod of this node's agent, with the names that docs/INSTALL.md has.
func (a agentProcess) pods() string {
	line := "kubectl -n gpuslice-system get pods -l app.kubernetes.io/component=agent -o wide"
	if node, _ := a.flag("node-name"); node != "" {
		line += " --field-selector spec.nodeName=" + node
	}
	return line
}

// flag is the value of one of the arguments, of which the last counts.
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

// reachable is where one who listens at an address is found by those in his network.
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

// findAgent finds the process that holds the agent's lock. It looks the lock up, for to
// try it would keep an agent that starts right now from starting.
func (e *exam) findAgent() (a agentProcess, runs bool) {
	info, err := e.stat(path.Join(e.o.StateDir, "agent.lock"))
	if err != nil {
		return a, false
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return a, false
	}
	locks, err := fs.ReadFile(e.Host, "proc/locks")
	if err != nil {
		return a, false
	}
	// "1: FLOCK  ADVISORY  WRITE 1234 00:1a:5678 0 EOF", proc_locks(5)
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(s.Dev), unix.Minor(s.Dev), s.Ino)
	for line := range strings.Lines(string(locks)) {
		fields := strings.Fields(line)
		if len(fields) <= 5 || fields[1] != "FLOCK" || fields[5] != file {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil && pid > 0 {
			a = e.process(pid)
		}
		return a, true
	}
	return a, false
}

// process is what can be read of one; what can't stays empty.
func (e *exam) process(pid int) agentProcess {
	a := agentProcess{pid: pid}
	dir := "proc/" + strconv.Itoa(pid)
	if data, err := fs.ReadFile(e.Host, dir+"/cmdline"); err == nil {
		a.args = strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
	}
	if data, err := fs.ReadFile(e.Host, dir+"/cgroup"); err == nil {
		// With systemd's names: /kubepods.slice/kubepods-burstable.slice/…
		a.inPod = slices.ContainsFunc(strings.FieldsFunc(string(data), func(r rune) bool { return r == '/' || r == '\n' }), func(name string) bool {
			return name == "kubepods" || name == "kubepods.slice"
		})
	}
	return a
}

// inOtherNetwork says whether a process is in another network than ours; one that is not known is not.
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
