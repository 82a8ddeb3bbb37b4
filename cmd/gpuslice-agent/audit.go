package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/limiter/feedback"
	"github.com/gpuslice/gpuslice/monitor/audit"
	"github.com/gpuslice/gpuslice/monitor/audit/podevents"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/oci"
)

// What is done about violations (--on-violation).
const (
	violationReport = "report"
	violationKill   = "kill"
)

// allowedFile is in the state directory: see audit.Config.
const allowedFile = "audit-allowed.json"

// longestGrace is the most that --violation-grace can be.
const longestGrace = 24 * time.Hour

func (o *options) validateAudit(c *checks) {
	c.want("audit-interval", o.AuditInterval == 0 || o.AuditInterval >= time.Second, "0 or at least 1s", o.AuditInterval)
	c.want("on-violation", o.OnViolation == violationReport || o.OnViolation == violationKill, "report or kill", o.OnViolation)
	c.want("on-violation", o.OnViolation != violationKill || o.AuditInterval > 0, "report with --audit-interval=0", o.OnViolation)
	c.want("violation-grace", o.ViolationGrace >= 0 && o.ViolationGrace <= longestGrace, "0 to 24h", o.ViolationGrace)
}

// audit compares what runs with what was granted; events may be nil.
func (o *options) audit(ledger *ledger.Ledger, inventory *nvidia.Cache, limits *nativeLimits, plugin *nriplugin.Plugin, holder *limiter.Holder, excesses func() []feedback.Excess, turn *progress, events audit.Events, log *slog.Logger) *audit.Auditor {
	container := func(id string) (audit.Container, bool, bool) {
		c, known := plugin.Container(id)
		return audit.Container{ID: id, Namespace: c.Namespace, Pod: c.Pod, PodUID: c.PodUID, Name: c.Name}, c.Exempt, known
	}
	inspector := audit.NewInspector("/proc", o.LibraryDir, container)
	inspector.Nodes = func() map[uint64]audit.DeviceNode { return deviceNodes(inventory.Node()) }
	return audit.New(audit.Config{
		Interval: o.AuditInterval, Grace: o.ViolationGrace, Kill: o.OnViolation == violationKill,
		Devices: func(ctx context.Context) (map[string][]nvidia.Process, error) {
			defer turn.waitForNVML()()
			return inventory.Processes(ctx)
		},
		Claims: func(ctx context.Context) ([]audit.Claim, error) {
			if limits != nil {
				defer turn.waitForNVML()()
			}
			return auditedClaims(ctx, ledger, limits)
		},
		Granted:     func(c *audit.Claim) ([]audit.Device, error) { return grantedDevices(ledger.Dir(c.ID)) },
		Locks:       func(c *audit.Claim) ([]limiter.Lock, error) { return holder.Locks(c.ID, c.Dir) },
		Excesses:    excesses,
		Inspector:   inspector,
		Ready:       func() error { return errors.Join(plugin.Ready(), inMachineNamespace()) },
		AllowedFile: filepath.Join(o.StateDir, allowedFile),

		Events: events,
		Log:    log,
	})
}

// nvidiaMajor is the major number of /dev/nvidia0 and so on: fixed by Linux' devices.txt.
const nvidiaMajor = 195

// deviceNodes returns the GPUs' device nodes by device number.
func deviceNodes(node nvidia.Node) map[uint64]audit.DeviceNode {
	nodes := make(map[uint64]audit.DeviceNode, len(node.GPUs))
	for _, gpu := range node.GPUs {
		of := audit.DeviceNode{gpu.UUID}
		for _, d := range gpu.MIG {
			of = append(of, d.UUID)
		}
		nodes[unix.Mkdev(nvidiaMajor, uint32(gpu.Minor))] = of
	}
	return nodes
}

// inMachineNamespace checks that the PIDs from NVML are valid in this PID namespace.
func inMachineNamespace() error {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return fmt.Errorf("inspect the PID namespace: %w", err)
	}
	if st.Ino != orphans.MachineNamespace {
		return errors.New("gpuslice-agent is not in the machine's PID namespace: set hostPID: true in its pod")
	}
	return nil
}

// auditedClaims are the ledger's active claims. A container that has ended, and still has a directory, has no
// active claim.
func auditedClaims(ctx context.Context, store *ledger.Ledger, limits *nativeLimits) ([]audit.Claim, error) {
	snapshot, err := store.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	var all []audit.Claim
	for _, e := range snapshot.Entries {
		if e.State == ledger.StateReleased {
			continue
		}
		var reserved []audit.Device
		for _, s := range e.Shares {
			reserved = append(reserved, audit.Device{UUID: s.UUID, LimitBytes: uint64(s.MemoryMiB) << 20})
		}
		var members []audit.Container
		modes := []string{e.Mode}
		for _, m := range e.Members {
			modes = append(modes, m.Mode)
			members = append(members, audit.Container{ID: m.ContainerID, Namespace: m.PodNamespace, Pod: m.PodName, PodUID: m.PodUID, Name: m.Container})
		}
		counted, _ := limits.counted(ctx, store.Dir(e.ContainerID), limited(e.Claim)) // the loop of the shares logs errors
		all = append(all, audit.Claim{
			Counted: counted,
			Members: members, Container: audit.Container{ID: e.ContainerID, Namespace: e.PodNamespace, Pod: e.PodName, PodUID: e.PodUID, Name: e.Container},
			Dir:     store.Dir(e.ContainerID),
			Devices: reserved,
			Unknown: e.State != ledger.StateActive, Process: e.Process,
			Uncontrolled: slices.Contains(modes, string(oci.EnforceNone)),
			Native:       slices.Contains(modes, string(oci.EnforceNative)),
		})
	}
	return all, nil
}

// grantedDevices are a claim's, by the file that its processes follow.
func grantedDevices(dir string) ([]audit.Device, error) {
	limits, err := limiter.ReadLimitsOf(dir, filepath.Base(dir))
	if err != nil {
		return nil, err
	}
	var all []audit.Device
	for _, d := range limits.Devices {
		all = append(all, audit.Device{UUID: d.UUID, LimitBytes: d.MemoryLimitBytes, ContextBytes: d.ContextBytes})
	}
	return all, nil
}

// startAudit starts the audit and the export of its findings, as the options require.
func (o *options) startAudit(ledger *ledger.Ledger, inventory *nvidia.Cache, limits *nativeLimits, plugin *nriplugin.Plugin, holder *limiter.Holder, excesses func() []feedback.Excess, shown *monitor, recorder *podevents.Recorder, loops *watchdog, then *background, log *slog.Logger) error {
	if o.AuditInterval == 0 {
		return nil
	}
	var events audit.Events // an interface that is nil, not one of a nil pointer
	if recorder != nil {
		events = recorder
	}
	auditor := o.audit(ledger, inventory, limits, plugin, holder, excesses, loops.loop("audit", o.AuditInterval), events, log)
	if err := shown.registry.Register(auditor); err != nil {
		return err
	}
	shown.auditor = auditor
	plugin.Trimmed = auditor.Resized
	*then = append(*then, auditor.Run)
	return nil
}
