//go:build linux && cgo

package cli

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// agentPatience bounds the wait for the agent's view: without it, top shows the containers' own numbers.
const agentPatience = 500 * time.Millisecond

func (thisNode) measure(ctx context.Context, n *view.Node, stateDir string) {
	if agent, known := agentView(ctx, stateDir); known {
		addUse(n, agent)
	}
}

func agentView(ctx context.Context, stateDir string) (n view.Node, known bool) {
	machine, err := doctor.NewMachine("/")
	if err != nil {
		return n, false
	}
	defer machine.Close()
	pid, address := doctor.AgentMetrics(machine, stateDir)
	if address == "" {
		return n, false
	}
	ctx, cancel := context.WithTimeout(ctx, agentPatience)
	defer cancel()
	status, body, err := machine.Get(ctx, pid, "http://"+address+"/api/v1/view")
	if err != nil || status != http.StatusOK || json.Unmarshal([]byte(body), &n) != nil {
		return n, false
	}
	return n, true
}

// addUse adds an agent's figures by UUID and container.
func addUse(n *view.Node, agent view.Node) {
	gpus, shares := map[string]view.GPU{}, map[string]view.Share{}
	for _, gpu := range agent.GPUs {
		gpus[gpu.UUID] = gpu
	}
	for _, c := range agent.Containers {
		for _, s := range c.Shares {
			shares[c.ContainerID+" "+s.UUID] = s
		}
	}
	n.Violations = agent.Violations
	for i, gpu := range n.GPUs {
		n.GPUs[i].Telemetry = gpus[gpu.UUID].Telemetry
	}
	for _, c := range n.Containers {
		for i, s := range c.Shares {
			c.Shares[i].CoreUsedPercent = shares[c.ContainerID+" "+s.UUID].CoreUsedPercent
		}
	}
}
