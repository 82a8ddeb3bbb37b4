// Package doctor examines what a node needs before gpuslice can guard its GPUs:
// the container runtime's version and configuration, the kubelet, the driver, and
// the agent's directories. It changes nothing.
//
// Every check is a function of what a [Host] shows, and ends in a [Result]: what
// was found and, if something is amiss, the exact remedy. [Machine] is the real
// host; tests have one of their own. The command "gpuslice doctor" is its caller.
package doctor

import (
	"context"
	"io/fs"
	"slices"
	"strings"
)

// State is how a check ended.
type State string

// The states, from good to bad.
const (
	// OK needs nothing.
	OK State = "ok"
	// Warn works, with less defence or for fewer pods.
	Warn State = "warn"
	// Fail does not work, or leaves GPUs unguarded.
	Fail State = "fail"
)

// severity orders states.
var severity = map[State]int{OK: 0, Warn: 1, Fail: 2}

// Result is what one check found.
type Result struct {
	Check string `json:"check"`
	State State  `json:"state"`
	Found string `json:"found"`
	// Fix are the lines of what to do; none where State is OK.
	Fix []string `json:"fix,omitempty"`
	// Repairs are what "doctor --fix" does of it, if it does something.
	Repairs []Repair `json:"repairs,omitempty"`
}

// Repair is something that can be fixed without a person: it ends no container, hides
// nothing, and can be taken back.
type Repair string

// The repairs.
const (
	// RepairContainerd sets what NRI needs in containerd's configuration, which is read
	// at its next start.
	RepairContainerd Repair = "containerd-nri"
	// RepairStateDirMode takes from others what they have of the state directory.
	RepairStateDirMode Repair = "state-dir-mode"
	// RepairStateMount writes the unit of the state directory's own tmpfs, which somebody
	// has to start.
	RepairStateMount Repair = "state-dir-mount"
)

// Repairs are those of all checks, each once, in order.
func (r Report) Repairs() (all []Repair) {
	for _, result := range r.Results {
		for _, repair := range result.Repairs {
			if !slices.Contains(all, repair) {
				all = append(all, repair)
			}
		}
	}
	return all
}

// Report is what all checks found. Its state is the worst of theirs.
type Report struct {
	State   State    `json:"state"`
	Results []Result `json:"checks"`
}

// Count is how many checks ended in a state.
func (r Report) Count(s State) int {
	n := 0
	for _, result := range r.Results {
		if result.State == s {
			n++
		}
	}
	return n
}

// Options say where things are on the node. Every path is absolute.
type Options struct {
	RuntimeSocket string
	RuntimeConfig string
	KubeletDir    string
	StateDir      string
	LibraryDir    string
	CDISpecDirs   []string
	// HealthAddress is host:port of the agent's /readyz; empty if it serves none. An agent
	// with a network of its own is asked where it says itself that it listens.
	HealthAddress string
}

// Host is a node as the checks see it. Paths are absolute, but for those of
// [fs.FS], which has them without the first slash.
type Host interface {
	fs.FS
	// Filesystem describes the file system that a path is on.
	Filesystem(path string) (Filesystem, error)
	// RuntimeVersion asks a container runtime's CRI socket who it is.
	RuntimeVersion(ctx context.Context, socket string) (name, version string, err error)
	// Output runs a program of the node.
	Output(ctx context.Context, program string, args ...string) (string, error)
	// Network names the network namespace that a process is in; 0 is who asks.
	Network(pid int) (string, error)
	// Get fetches a URL, within the network of a process; 0 is who asks.
	Get(ctx context.Context, pid int, url string) (status int, body string, err error)
}

// Filesystem is what the checks want to know of one.
type Filesystem struct {
	// Type is its magic number, as in statfs(2).
	Type       int64
	NoExec     bool
	FreeBytes  uint64
	FreeInodes uint64
}

// checks are all checks in the order of the report: what the later ones build on
// comes first.
var checks = []struct {
	name string
	run  func(context.Context, *exam, *verdict)
}{
	{"runtime", checkRuntime},
	{"runtime-config", checkRuntimeConfig},
	{"nri", checkNRI},
	{"nri-timeout", checkNRITimeout},
	{"nri-validator", checkNRIValidator},
	{"runtime-handlers", checkHandlers},
	{"barrier", checkBarrier},
	{"nvidia-toolkit", checkToolkit},
	{"cgroup", checkCgroup},
	{"kubelet", checkKubelet},
	{"driver-modules", checkModules},
	{"driver-devices", checkDevices},
	{"driver-library", checkDriverLibrary},
	{"cdi", checkCDI},
	{"state-dir", checkStateDir},
	{"library-dir", checkLibraryDir},
	{"unstarted", checkUnstarted},
	{"large-containers", checkLargeContainers},
	{"agent", checkAgent},
}

// Examine runs every check.
func Examine(ctx context.Context, h Host, o Options) Report {
	return newExam(ctx, h, o).examine(ctx, func(string) bool { return true })
}

// ExamineDriver runs the checks of what the driver needs of the kernel: its modules and
// its device nodes. It asks no other program.
func ExamineDriver(ctx context.Context, h Host, o Options) Report {
	e := &exam{Host: h, o: o}
	return e.examine(ctx, func(name string) bool { return name == "driver-modules" || name == "driver-devices" })
}

// examine runs the checks that are wanted.
func (e *exam) examine(ctx context.Context, wanted func(name string) bool) Report {
	report := Report{State: OK}
	for _, c := range checks {
		if !wanted(c.name) {
			continue
		}
		var v verdict
		c.run(ctx, e, &v)
		r := Result{Check: c.name, State: v.worst(), Found: strings.Join(v.found, "; "), Fix: v.remedy, Repairs: v.repairs}
		if severity[r.State] > severity[report.State] {
			report.State = r.State
		}
		report.Results = append(report.Results, r)
	}
	return report
}

// exam is an examination: the host, and what several checks want to know of it.
type exam struct {
	Host
	o       Options
	runtime runtimeFacts
	config  runtimeConfig
}

func newExam(ctx context.Context, h Host, o Options) *exam {
	e := &exam{Host: h, o: o}
	e.runtime = findRuntime(ctx, h, o.RuntimeSocket)
	e.config = readRuntimeConfig(h, o.RuntimeConfig, e.runtime.version)
	return e
}

func (e *exam) stat(path string) (fs.FileInfo, error) { return fs.Stat(e.Host, name(path)) }

func (e *exam) exists(path string) bool {
	_, err := e.stat(path)
	return err == nil
}

// name is an absolute path as fs.FS has it.
func name(path string) string {
	if trimmed := strings.Trim(path, "/"); trimmed != "" {
		return trimmed
	}
	return "."
}

// verdict gathers what a check finds.
type verdict struct {
	state   State
	found   []string
	remedy  []string
	repairs []Repair
}

func (v *verdict) worst() State {
	if v.state == "" {
		return OK
	}
	return v.state
}

func (v *verdict) add(s State, found string, fix []string) {
	if severity[s] > severity[v.state] {
		v.state = s
	}
	v.found = append(v.found, found)
	v.remedy = append(v.remedy, fix...)
}

func (v *verdict) ok(found string)                  { v.add(OK, found, nil) }
func (v *verdict) warn(found string, fix ...string) { v.add(Warn, found, fix) }
func (v *verdict) fail(found string, fix ...string) { v.add(Fail, found, fix) }

// repair says that what was found last can be fixed without a person.
func (v *verdict) repair(r Repair) { v.repairs = append(v.repairs, r) }
