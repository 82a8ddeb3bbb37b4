package hostinstall

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
)

const (
	agentProgram = "gpuslice-agent"
	agentUnit    = "/etc/systemd/system/" + doctor.AgentUnit
	startAgent   = "systemctl daemon-reload && systemctl enable --now " + doctor.AgentUnit
)

// planAgent adds the agent's unit to the plan of an engine without Kubernetes, if the host has the program or gets it.
func (p *plan) planAgent(h fs.FS, o Options) {
	if o.AgentUnit == nil {
		return
	}
	program := path.Join(path.Dir(o.RuntimePath), agentProgram)
	_, notFound := fs.Stat(h, inside(program))
	if o.From != "" {
		_, notFound = firstOf(o.From, agentProgram, ".", "bin")
	}
	if notFound != nil {
		p.notes = append(p.notes, fmt.Sprintf("%s does not exist: no unit of the agent was written. Without it, %s", program, doctor.WithoutAgent))
		return
	}
	unit := strings.ReplaceAll(string(o.AgentUnit), "/usr/bin/"+agentProgram, program)
	p.targets = append(p.targets, target{path: agentUnit, whole: []byte(unit)})
	if !o.Start {
		p.notes = append(p.notes, fmt.Sprintf("run `%s` for the agent. Without it, %s", startAgent, doctor.WithoutAgent))
	}
}

func (j *job) startAgent(ctx context.Context, next record) error {
	switch {
	case next.file(agentUnit) == nil:
		return fmt.Errorf("--start: %s has no unit of the agent", j.Engine)
	case j.Systemctl == nil:
		return errors.New("--start: systemd does not run here: start gpuslice-agent by hand")
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", doctor.AgentUnit}, {"restart", doctor.AgentUnit}} {
		if err := j.Systemctl(ctx, args...); err != nil {
			return fmt.Errorf("start the agent: %w", err)
		}
	}
	fmt.Fprintf(j.out, "started    %s\n", doctor.AgentUnit)
	return nil
}

// keepAgent reports whether another engine needs the agent's unit; else it stops the agent before the unit is removed.
func (j *job) keepAgent(ctx context.Context) (bool, error) {
	for _, engine := range Engines() {
		data, err := j.host.read(recordPath(engine))
		if engine == j.Engine || err != nil || data == nil {
			continue
		}
		if r, err := decodeRecord(data); err == nil && r.file(agentUnit) != nil {
			return true, nil
		}
	}
	if j.DryRun || j.Systemctl == nil {
		return false, nil
	}
	if err := j.Systemctl(ctx, "disable", "--now", doctor.AgentUnit); err != nil {
		return false, fmt.Errorf("stop the agent: %w", err)
	}
	return false, nil
}

// copied are the programs that From has.
func (j *job) copied() map[string]string {
	dir := path.Dir(j.RuntimePath)
	programs := map[string]string{runtimeProgram: j.RuntimePath, cliProgram: path.Join(dir, cliProgram)}
	if _, err := firstOf(j.From, agentProgram, ".", "bin"); err == nil && slices.Contains([]string{"docker", "podman"}, j.Engine) {
		programs[agentProgram] = path.Join(dir, agentProgram)
	}
	return programs
}
