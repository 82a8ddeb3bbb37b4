// Package doctor checks what a node needs for gpuslice: the container runtime's version and configuration, the kubelet, the
// driver, and the agent's directories. It changes nothing. Each check reads a [Host] ([Machine] is the real one) and returns a
// [Result] with the fix.
package doctor

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
)

type State string

// The states, from good to bad.
const (
	OK State = "ok"
	// Warn: it works, with less protection or for fewer pods.
	Warn State = "warn"
	// Fail: it does not work, or GPUs are not protected.
	Fail State = "fail"
)

var severity = map[State]int{OK: 0, Warn: 1, Fail: 2}

type Result struct {
	Check string   `json:"check"`
	State State    `json:"state"`
	Found string   `json:"found"`
	Fix   []string `json:"fix,omitempty"`
	// Repairs are the parts that "doctor --fix" can do.
	Repairs []Repair `json:"repairs,omitempty"`
}

// Repair is an automatic fix. It ends no container and can be reverted.
type Repair string

const (
	// RepairContainerd sets the NRI settings in containerd's configuration.
	RepairContainerd   Repair = "containerd-nri"
	RepairStateDirMode Repair = "state-dir-mode"
	// RepairStateMount writes the unit of the state directory's tmpfs, without starting it.
	RepairStateMount Repair = "state-dir-mount"
)

// Repairs returns the repairs of all checks, without duplicates.
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

// Report has the results of all checks, and the worst state.
type Report struct {
	State State `json:"state"`
	// For is what the host is for.
	For     []Use    `json:"for"`
	Results []Result `json:"checks"`
}

func (r Report) Count(s State) int {
	n := 0
	for _, result := range r.Results {
		if result.State == s {
			n++
		}
	}
	return n
}

// Options are paths on the node; all are absolute.
type Options struct {
	// Uses are what the host is for; none: what is found.
	Uses          []Use
	RuntimeSocket string
	RuntimeConfig string
	KubeletDir    string
	StateDir      string
	LibraryDir    string
	CDISpecDirs   []string
	// HealthAddress is host:port of the agent's /readyz, or empty.
	HealthAddress string
}

// Host is a node. Paths are absolute, except for [fs.FS].
type Host interface {
	fs.FS
	IsRoot() bool
	Filesystem(path string) (Filesystem, error)
	RuntimeVersion(ctx context.Context, socket string) (name, version string, err error)
	Output(ctx context.Context, program string, args ...string) (string, error)
	// Network identifies a process' network namespace; 0 is this process.
	Network(pid int) (string, error)
	// Get reads a URL in the network namespace of a process.
	Get(ctx context.Context, pid int, url string) (status int, body string, err error)
}

// Filesystem describes a file system.
type Filesystem struct {
	Type       int64 // magic number of statfs(2)
	NoExec     bool
	FreeBytes  uint64
	FreeInodes uint64
}

type check func(context.Context, *exam, *verdict)

// ofContainerd skips a check with another runtime, and without containerd's configuration.
func ofContainerd(run check) check {
	return func(ctx context.Context, e *exam, v *verdict) {
		if !e.notContainerd(v) {
			run(ctx, e, v)
		}
	}
}

var checks = []struct {
	name string
	run  check
	uses []Use // none: all
}{
	{"user", checkUser, nil},
	{"runtime", checkRuntime, []Use{Kubernetes}},
	{"runtime-config", checkRuntimeConfig, []Use{Kubernetes}},
	{"nri", checkNRI, []Use{Kubernetes}},
	{"nri-timeout", ofContainerd(checkNRITimeout), []Use{Kubernetes}},
	{"nri-validator", checkNRIValidator, []Use{Kubernetes}},
	{"runtime-handlers", ofContainerd(checkHandlers), []Use{Kubernetes}},
	{"barrier", ofContainerd(checkBarrier), []Use{Kubernetes}},
	{"nvidia-toolkit", checkToolkit, []Use{Kubernetes}},
	{"docker", checkDocker, []Use{Docker}},
	{"podman", checkPodman, []Use{Podman}},
	{"requests", checkRequests, []Use{Docker, Podman}},
	{"cgroup", checkCgroup, nil},
	{"kubelet", checkKubelet, []Use{Kubernetes}},
	{"driver-modules", checkModules, nil},
	{"driver-devices", checkDevices, nil},
	{"driver-library", checkDriverLibrary, nil},
	{"compute-source", checkComputeSource, nil},
	{"cdi", checkCDI, nil},
	{"host-memory", checkHostMemory, nil},
	{"state-dir", checkStateDir, nil},
	{"library-dir", checkLibraryDir, nil},
	{"verification", checkVerification, nil},
	{"unstarted", checkUnstarted, nil},
	{"large-containers", checkLargeContainers, []Use{Kubernetes}},
	{"agent", checkAgent, nil},
}

// Examine runs every check of what the host is for.
func Examine(ctx context.Context, h Host, o Options) Report {
	return newExam(ctx, h, o).examine(ctx, func(string) bool { return true })
}

// ExamineDriver checks the driver's kernel modules and device nodes.
func ExamineDriver(ctx context.Context, h Host, o Options) Report {
	e := &exam{Host: h, o: o}
	return e.examine(ctx, func(name string) bool { return name == "driver-modules" || name == "driver-devices" })
}

// ExamineCDI checks the CDI specs of a host for container engines.
func ExamineCDI(ctx context.Context, h Host, o Options) Result {
	o.Uses = []Use{Docker}
	report := newExam(ctx, h, o).examine(ctx, func(name string) bool { return name == "cdi" })
	return report.Results[0] // it always applies
}

func (e *exam) examine(ctx context.Context, wanted func(name string) bool) Report {
	report := Report{State: OK, For: e.o.Uses}
	for _, c := range checks {
		if !wanted(c.name) || len(c.uses) > 0 && !e.isFor(c.uses...) {
			continue
		}
		var v verdict
		if c.run(ctx, e, &v); len(v.found) == 0 {
			continue // it does not apply
		}
		if c.name != "user" && !e.IsRoot() {
			v.remedy = slices.DeleteFunc(v.remedy, func(line string) bool { return strings.HasPrefix(line, asRoot) })
		}
		r := Result{Check: c.name, State: v.worst(), Found: strings.Join(v.found, "; "), Fix: v.remedy, Repairs: v.repairs}
		if severity[r.State] > severity[report.State] {
			report.State = r.State
		}
		report.Results = append(report.Results, r)
	}
	return report
}

type exam struct {
	Host
	o       Options
	runtime runtimeFacts
	config  Containerd
}

func newExam(ctx context.Context, h Host, o Options) *exam {
	e := &exam{Host: h, o: o}
	if len(e.o.Uses) == 0 {
		e.o.Uses = e.detectUses()
	}
	if e.needsOnlyEngines() {
		return e
	}
	e.runtime = findRuntime(ctx, h, o.RuntimeSocket)
	e.config = readContainerd(h, o.RuntimeConfig, e.runtime.version)
	return e
}

func (e *exam) stat(path string) (fs.FileInfo, error) { return fs.Stat(e.Host, name(path)) }

// statT returns nil if the file can't be read, or has no numbers of the kernel.
func (e *exam) statT(path string) *syscall.Stat_t {
	info, err := e.stat(path)
	if err != nil {
		return nil
	}
	s, _ := info.Sys().(*syscall.Stat_t)
	return s
}

func (e *exam) exists(path string) bool {
	_, err := e.stat(path)
	return err == nil
}

func name(path string) string {
	if trimmed := strings.Trim(path, "/"); trimmed != "" {
		return trimmed
	}
	return "."
}

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

func (v *verdict) repair(r Repair) { v.repairs = append(v.repairs, r) }

var stateColors = map[State]term.Color{OK: term.Green, Warn: term.Yellow, Fail: term.Red}

func (r Report) Print(out io.Writer, style term.Style) error {
	for _, c := range r.Results {
		state := style.Paint(stateColors[c.State], fmt.Sprintf("%-4s", c.State))
		if _, err := fmt.Fprintf(out, "%s  %-16s  %s\n", state, c.Check, term.Clean(c.Found)); err != nil {
			return err
		}
		for i, line := range c.Fix {
			label := "      "
			if i == 0 {
				label = style.Paint(term.Bold, "  fix:")
			}
			if _, err := fmt.Fprintf(out, "%s %s\n", label, term.Clean(line)); err != nil {
				return err
			}
		}
	}
	uses := make([]string, len(r.For))
	for i, use := range r.For {
		uses[i] = string(use)
	}
	_, err := fmt.Fprintf(out, "\n%d checks for %s: %d ok, %d warn, %d fail\n", len(r.Results), strings.Join(uses, ", "), r.Count(OK), r.Count(Warn), r.Count(Fail))
	return err
}
