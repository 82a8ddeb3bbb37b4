// Package verify checks the isolation of a node against its driver: it has gpuslice-probe run in two containers that get shares as a
// user's do, and judges what the probes find there. Judging (judge.go) is pure; ways.go starts probes. Only package cli imports it.
package verify

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/monitor/verification"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// Config is what a run needs of its node.
type Config struct {
	Way Way
	// View reads the node's GPUs, containers and, if an agent runs, the audit's violations.
	View func(ctx context.Context) (n view.Node, agent bool, err error)
	// CDI checks the host's CDI specs, where the probes are in no container; optional.
	CDI func(ctx context.Context) (ok bool, found string)
	// Timeout bounds the run; a step gets a quarter.
	Timeout time.Duration
	// Progress is called with the name of each step.
	Progress func(step string)
}

// ErrNotRun marks errors that are no result: the checks could not run.
var ErrNotRun = errors.New("could not verify this node")

// lead is the time in which both probes make their contexts before they begin at the same time.
const lead = 2 * time.Second

// auditPatience is the shortest wait for the audit. By default it passes every 5 s, and two passes have to find a process.
const auditPatience = 40 * time.Second

// Run checks the node. It takes only free room, and ends all that it started. The report has no program and time.
func Run(ctx context.Context, c Config) (verification.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	r := &run{Config: c, step: c.Timeout / 4}
	report, err := r.run(ctx)
	if err != nil {
		return report, fmt.Errorf("%w: %w", ErrNotRun, err)
	}
	return report, nil
}

type run struct {
	Config
	step   time.Duration
	of     room
	probes [2]*probe
	driver string // of the node; empty: not known
	agent  bool   // an agent has answered
	rows   []verification.Row
}

func (r *run) run(ctx context.Context) (report verification.Report, err error) {
	n, err := r.firstView(ctx)
	if err != nil {
		return report, err
	}
	if _, isPod := r.Way.(Sockets); !isPod {
		if r.of, err = r.Way.choose(n); err != nil {
			return report, err
		}
	}
	for i := range r.probes {
		p, err := r.startProbe(ctx, i)
		if err != nil {
			return report, err
		}
		defer p.close() //nolint:errcheck // its answers have what went wrong
		r.probes[i] = p
	}
	containers, err := r.granted(ctx)
	if err != nil {
		return report, err
	}
	r.driver = n.DriverVersion
	report = verification.Report{
		Node: n.Name, Driver: n.DriverVersion, CUDA: n.CUDAVersion, GPU: r.of.gpu.UUID, Model: r.of.gpu.Model, Way: r.Way.String(),
	}
	if len(containers) > 0 {
		report.Enforcement = containers[0].Enforcement
	}
	r.rows = append(r.rows, judgeEnforcement(containers))
	err = r.check(ctx)
	report.Rows = r.rows
	report.Outcome = verification.OutcomeOf(r.rows)
	return report, err
}

// firstView waits for an agent that has just started.
func (r *run) firstView(ctx context.Context) (n view.Node, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.step)
	defer cancel()
	for {
		if n, err = r.view(ctx); err == nil {
			return n, nil
		}
		if _, isPod := r.Way.(Sockets); !isPod {
			return n, err
		}
		select {
		case <-ctx.Done():
			return n, err
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (r *run) view(ctx context.Context) (view.Node, error) {
	n, agent, err := r.View(ctx)
	r.agent = r.agent || agent && err == nil
	return n, err
}

func (r *run) startProbe(ctx context.Context, i int) (*probe, error) {
	r.Progress("container " + strconv.Itoa(i+1))
	ctx, cancel := context.WithTimeout(ctx, r.step)
	defer cancel()
	p, err := r.Way.start(ctx, i, r.of)
	if err != nil {
		return nil, err
	}
	if err := p.limit(ctx, r.step, r.Timeout); err != nil {
		return nil, errors.Join(fmt.Errorf("container %d: %w", i+1, err), p.close())
	}
	return p, nil
}

// granted reads the containers' shares, which the agent can show later than they begin.
func (r *run) granted(ctx context.Context) (found []view.Container, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.step)
	defer cancel()
	for {
		n, viewErr := r.view(ctx)
		found, err = nil, viewErr
		for i := range r.probes {
			for _, c := range n.Containers {
				if r.Way.isContainer(i, c) {
					found = append(found, c)
				}
			}
		}
		if _, isPod := r.Way.(Sockets); isPod && err == nil {
			r.of, err = r.Way.choose(n)
		}
		if err == nil && len(found) == len(r.probes) {
			return found, nil
		}
		select {
		case <-ctx.Done():
			return found, err // the row has their number
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// check runs the steps. Those after a limiter that is not there are not run: they would take what others can have.
func (r *run) check(ctx context.Context) error {
	var inside [2]answers
	for i := range inside {
		var err error
		if inside[i], err = r.ask(ctx, i, "inside"); err != nil {
			return err
		}
	}
	if r.CDI == nil {
		r.add(worse(judgeDevices(inside[0]), judgeDevices(inside[1])))
	} else {
		r.add(judgeHost(r.CDI(ctx)))
	}
	limited := judgeBoth(inside)
	r.add(limited...)
	why := ""
	switch {
	case verification.OutcomeOf(r.rows) == verification.NotVerified:
		why = "a container is not limited"
	case verification.OutcomeOf(limited) != verification.Verified:
		why = "it is not known whether both containers are limited"
	}
	if why != "" {
		r.skip(why, "gpu", "cuda-memory", "nvml-memory")
		for _, k := range kinds {
			r.skip(why, "memory-"+k.name)
		}
		r.skip(why, "shares")
	} else if err := r.checkLimits(ctx); err != nil {
		return err
	}
	return r.checkAudit(ctx)
}

func (r *run) checkLimits(ctx context.Context) error {
	seen, err := r.ask(ctx, 0, "view")
	if err != nil {
		return err
	}
	r.add(judgeGPU(seen, r.of.gpu.UUID, r.driver))
	r.add(judgeView(seen, LimitMiB)...)
	for _, k := range kinds {
		a, err := r.ask(ctx, 0, fmt.Sprintf("memory %s %d %d", k.name, chunkMiB, LimitMiB+beyondMiB))
		if err != nil {
			return err
		}
		r.add(judgeMemory(k.name, k.what, a, LimitMiB))
	}
	return r.checkShares(ctx)
}

func (r *run) checkShares(ctx context.Context) error {
	measured, err := r.ask(ctx, 0, "calibrate")
	if err != nil {
		return err
	}
	if why := measured.problem(); why != "" {
		r.add(inTime(measured, verification.Row{Check: "shares", State: verification.Failed, Expected: "both containers work", Found: why}))
		return nil
	}
	var rounds [][2]answers
	for {
		both, err := r.round(ctx, measured["iterations"])
		if err != nil {
			return err
		}
		rounds = append(rounds, both)
		if row, decided := judgeShares(rounds, r.of.cores); decided {
			r.add(row)
			return nil
		}
	}
}

// round has both probes work at the same time.
func (r *run) round(ctx context.Context, iterations string) (both [2]answers, err error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return both, err
	}
	begin := float64(now.Sec) + float64(now.Nsec)/1e9 + lead.Seconds()
	command := fmt.Sprintf("work %.6f %d %s", begin, roundSeconds, iterations)
	r.Progress("shares of compute time")
	var errs [2]error
	done := make(chan struct{})
	go func() {
		defer close(done)
		both[1], errs[1] = r.answered(ctx, 1, command)
	}()
	both[0], errs[0] = r.answered(ctx, 0, command)
	<-done
	return both, errors.Join(errs[:]...)
}

func (r *run) checkAudit(ctx context.Context) error {
	const check = "audit"
	if !r.agentAnswers(ctx) {
		row := verification.Row{Check: check, State: verification.NotRun, Optional: !r.hasAgent(), Expected: auditExpected, Found: "no agent answers: nothing audits this node"}
		if !row.Optional {
			row.Found = "the agent did not answer in time"
		}
		r.add(row)
		return nil
	}
	r.Progress("audit")
	s, end, err := r.Way.stranger(ctx, r.step, r.Timeout, r.of, r.probes[0])
	if err != nil {
		r.add(verification.Row{Check: check, State: verification.NotRun, Expected: auditExpected, Found: "no process could be started: " + err.Error()})
		return nil
	}
	reported := r.awaitReport(ctx, s)
	row := judgeAudit(s.kind, reported, r.auditPatience())
	if reported == "" && ctx.Err() != nil {
		row.State, row.Found = verification.NotRun, "the time of the run was over before that of the audit"
	}
	r.add(row)
	_ = end() // a process that is still there ends with this one
	return nil
}

// auditPatience is the time that the audit has.
func (r *run) auditPatience() time.Duration { return max(auditPatience, r.Timeout/3) }

// hasAgent reports whether an agent runs on this node: it has answered, or the pod has its address.
func (r *run) hasAgent() bool {
	_, isPod := r.Way.(Sockets)
	return isPod || r.agent
}

// agentAnswers asks for a step where an agent runs: a busy node's can be late. Elsewhere it asks several times.
func (r *run) agentAnswers(ctx context.Context) bool {
	begin := time.Now()
	for i := 0; i < 10 || r.hasAgent() && time.Since(begin) < r.step; i++ {
		if _, agent, err := r.View(ctx); err == nil && agent {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(200 * time.Millisecond):
		}
	}
	return false
}

func (r *run) awaitReport(ctx context.Context, s stranger) string {
	ctx, cancel := context.WithTimeout(ctx, r.auditPatience())
	defer cancel()
	for {
		if n, _, err := r.View(ctx); err == nil {
			if reported := reportOf(n, s.kind, s.pid, s.container); reported != "" {
				return reported
			}
		}
		select {
		case <-ctx.Done():
			return ""
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (r *run) ask(ctx context.Context, i int, command string) (answers, error) {
	r.Progress(command)
	return r.answered(ctx, i, command)
}

// answered returns answers without an end, and no error, for a program that the node has ended or holds up: the row has it.
func (r *run) answered(ctx context.Context, i int, command string) (answers, error) {
	a, err := r.probes[i].ask(ctx, r.step, command)
	switch {
	case err == nil || ctx.Err() != nil:
		return a, err
	case !errors.Is(err, errEnded):
		go func() { _ = r.probes[i].close() }() // it would take the next command for the end of this one
	}
	return a, nil
}

func (r *run) add(rows ...verification.Row) { r.rows = append(r.rows, rows...) }

func (r *run) skip(why string, checks ...string) {
	for _, check := range checks {
		r.add(verification.Row{Check: check, State: verification.NotRun, Expected: "a limit to test", Found: why})
	}
}
