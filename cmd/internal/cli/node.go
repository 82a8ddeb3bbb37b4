//go:build linux && cgo

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/monitor/node"
	"github.com/gpuslice/gpuslice/monitor/nodeview"
	"github.com/gpuslice/gpuslice/monitor/verification"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/oci"
	ociruntime "github.com/gpuslice/gpuslice/oci/runtime"
)

// Node is the program on a node: gpuslice.
func Node() *cobra.Command {
	return root(&cobra.Command{Use: "gpuslice", Short: "Show and manage the GPUs of a node or a cluster", Long: manual}, thisNode{},
		doctorCommand(), gpusCommand(), limitMemoryCommand(), cdiCommand(), installCommand(), uninstallCommand(), runCommand(), verifyCommand())
}

const manual = `gpuslice shows the GPUs of a node or of a cluster, what is granted and what is
in use. It checks what a node needs, and installs gpuslice into container
engines. On a node, run it as root.

Exit status: 0 success (what could not be read is printed as problems); 1
failure; 2 invalid usage.`

// thisNode reads the files of the agent and of the containers.
type thisNode struct{}

func (thisNode) view(ctx context.Context, stateDir string) (view.Node, error) {
	n, err := nodeview.Read(ctx, stateDir)
	if err != nil {
		return n, err
	}
	config, _ := ociruntime.LoadConfig(api.RuntimeConfig) // with an error: the default directory
	report, err := verification.Read(config.LibraryDir)
	if v := verification.Judge(report, err, n.DriverVersion); !v.At.IsZero() {
		n.Verification = &view.Verification{Status: v.Status, Reason: v.Reason, Message: v.Message, At: v.At}
	}
	return n, nil
}

func (thisNode) hardware(stateDir string) (gpusOf, error) {
	f, err := node.Read(stateDir)
	return hardwareOf(f), err
}

func hardwareOf(f node.File) gpusOf { return gpusOf{Node: f.Node, Topology: f.Topology} }

func (thisNode) template(text string) (printers.ResourcePrinter, error) {
	return printers.NewGoTemplatePrinter([]byte(text))
}

func (thisNode) unchecked(stateDir string) (string, error) {
	machine, err := doctor.NewMachine("/")
	if err != nil {
		return "", err
	}
	defer machine.Close()
	if doctor.AgentRuns(machine, stateDir) {
		return "", nil
	}
	return doctor.WithoutAgent, nil
}

func (thisNode) describe(d *containerDescribed, stateDir string) error {
	store, err := ledger.OpenReadOnly(stateDir)
	if err != nil {
		return err
	}
	d.Dir = store.Dir(d.ContainerID)
	limits, err := limiter.ReadLimits(limiter.LimitsPath(d.Dir))
	if err != nil && d.State == string(ledger.StateActive) {
		d.Problems = append(d.Problems, "limits: "+strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	usage, _ := limiter.ReadUsage(limiter.UsagePath(d.Dir)) // the view reports the error
	d.Oversubscribe = limits.Oversubscribe
	for i := range d.Shares {
		if i < len(limits.Devices) {
			d.Shares[i].Limit = limitOfShare(limits.Devices[i])
		}
		if i < len(usage.Devices) {
			d.Shares[i].Parts = partsOf(usage.Devices[i])
		}
	}
	return nil
}

func limitOfShare(l limiter.DeviceLimit) *limitDescribed {
	policies := map[limiter.Policy]string{limiter.PolicyDefault: "default", limiter.PolicyForce: "force", limiter.PolicyDisable: "disable"}
	priorities := map[limiter.Priority]string{limiter.PriorityHigh: "high", limiter.PriorityLow: "low"}
	return &limitDescribed{
		MemoryBytes: l.MemoryLimitBytes, PhysicalBytes: l.PhysicalBytes, Cores: l.CorePercent, CoresCeiling: l.CoreSoftPercent,
		Policy: policies[l.Policy], Priority: priorities[l.Priority],
		Unmeasured: l.Unmeasured,
	}
}

func partsOf(u limiter.DeviceUsage) map[string]uint64 {
	parts := map[string]uint64{}
	for i, bytes := range []uint64{u.ContextBytes, u.PoolBytes, u.VMMBytes, u.GraphBytes, u.ArrayBytes, u.SpilledBytes} {
		if bytes > 0 {
			parts[partNames[i]] = bytes
		}
	}
	return parts
}

func (thisNode) cordon(c *cobra.Command, name string, on, dryRun bool) (held int, err error) {
	ledger, file, err := openNode(c)
	if err != nil {
		return 0, err
	}
	defer ledger.Close()
	uuid, err := findGPU(hardwareOf(file), name)
	if err != nil {
		return 0, err
	}
	gpu, _ := file.Node.GPU(uuid)
	devices := []string{uuid}
	for _, d := range gpu.MIG {
		devices = append(devices, d.UUID)
	}
	done := "gets no new containers on this node"
	switch {
	case dryRun:
		done = "would get no new containers on this node"
	case on:
		err = ledger.Cordon(c.Context(), uuid)
	default:
		done = "gets new containers on this node again"
		err = uncordon(c, ledger, file, uuid, devices)
	}
	if err != nil {
		return 0, err
	}
	fmt.Fprintf(c.OutOrStdout(), "GPU %s %s\n", uuid, done)
	for _, device := range devices[1:] {
		fmt.Fprintf(c.OutOrStdout(), "its MIG device %s %s\n", device, done)
	}
	if !on {
		return 0, nil
	}
	snapshot, err := ledger.Snapshot(c.Context())
	if err != nil {
		return 0, err
	}
	for _, claim := range snapshot.Claims() {
		if !slices.ContainsFunc(claim.Shares, func(s grant.Share) bool { return slices.Contains(devices, s.UUID) }) {
			continue
		}
		held++
		pod := ""
		if claim.PodName != "" {
			pod = fmt.Sprintf(" of pod %s/%s", claim.PodNamespace, claim.PodName)
		}
		fmt.Fprintf(c.OutOrStdout(), "in use by container %s\n", term.Clean(claim.ContainerID+pod))
	}
	return held, nil
}

// uncordon allows a GPU with its MIG devices again. It refuses a MIG device while its GPU is cordoned.
func uncordon(c *cobra.Command, store *ledger.Ledger, file node.File, uuid string, devices []string) error {
	if _, gpu, is := file.Node.MIGDevice(uuid); is {
		cordoned, err := ledger.Cordoned(stateDir(c))
		if err != nil {
			return err
		}
		if slices.Contains(cordoned, gpu.UUID) {
			return fmt.Errorf("GPU %s of MIG device %s is cordoned: run gpuslice uncordon %s, and cordon its other MIG devices", gpu.UUID, uuid, gpu.UUID)
		}
	}
	return store.Uncordon(c.Context(), devices...)
}

func (thisNode) resize(c *cobra.Command, target string, o resizeOptions) error {
	ledger, file, err := openNode(c)
	if err != nil {
		return err
	}
	defer ledger.Close()
	gpus := node.Capacities(file.Devices)
	uuid := ""
	if o.gpu != "" {
		if uuid, err = findGPU(hardwareOf(file), o.gpu); err != nil {
			return err
		}
	}
	snapshot, err := ledger.Snapshot(c.Context())
	if err != nil {
		return err
	}
	claim, err := findClaim(snapshot.Claims(), target)
	if err == nil {
		err = checkResizable(ledger, claim)
	}
	if err != nil {
		return err
	}
	shares, err := o.of(claim.Shares, gpus, uuid)
	if err != nil {
		return err
	}
	before, err := reserve(c.Context(), ledger, claim.ContainerID, shares, gpus)
	if err != nil {
		return err
	}
	for i, s := range shares {
		fmt.Fprintf(c.OutOrStdout(), "container %s, GPU %s: %s\n", claim.ContainerID, s.UUID, change(before[i], s))
	}
	return nil
}

// openNode opens the ledger in the state directory, and reads the node's GPUs.
func openNode(c *cobra.Command) (*ledger.Ledger, node.File, error) {
	file, err := node.Read(stateDir(c)) // first: OpenLedger creates the directory
	if err != nil {
		return nil, file, err
	}
	ledger, err := ledger.Open(stateDir(c), ledger.WithRecovery(oci.RecoverClaim))
	return ledger, file, err
}

// findClaim finds a claim by its container's ID, a prefix of it, or its name.
func findClaim(claims []ledger.Claim, target string) (ledger.Claim, error) {
	var found []string
	byID := map[string]ledger.Claim{}
	for _, c := range claims {
		if byID[c.ContainerID] = c; c.ContainerID == target {
			return c, nil
		}
		if strings.HasPrefix(c.ContainerID, target) || c.Container == target {
			found = append(found, c.ContainerID)
		}
	}
	id, err := cluster.One("container", target, found, "gpuslice status -o wide")
	return byID[id], err
}

// checkResizable rejects claims that the scheduler or the config decides about.
func checkResizable(store *ledger.Ledger, claim ledger.Claim) error {
	if claim.Owner != ledger.OwnerRuntime {
		return fmt.Errorf("the scheduler reserves the shares of container %s of pod %s/%s: run gpuslice resize %s/%s:%s with a kubeconfig",
			claim.ContainerID, claim.PodNamespace, claim.PodName, claim.PodNamespace, claim.PodName, claim.Container)
	}
	if oci.Enforcement(claim.Mode).Native() {
		return fmt.Errorf("the driver limits the memory of container %s, and its limit can't be changed here: start the container again with another request", claim.ContainerID)
	}
	record, err := orphans.Read(store.Dir(claim.ContainerID))
	if err != nil {
		return fmt.Errorf("container %s: %w", claim.ContainerID, err)
	}
	if record.Slice != "" {
		return fmt.Errorf("container %s has the slice %q: change the slice in the config, and run gpuslice cdi generate", claim.ContainerID, record.Slice)
	}
	return nil
}

// reserve resizes the claim. If a GPU is full, it releases orphans first.
func reserve(ctx context.Context, ledger *ledger.Ledger, id string, shares []grant.Share, gpus map[string]grant.GPU) ([]grant.Share, error) {
	before, err := ledger.Resize(ctx, id, shares, gpus, oci.Resize)
	if errors.Is(err, grant.ErrOverbooked) {
		snapshot, readErr := ledger.Snapshot(ctx)
		if readErr != nil {
			return before, err
		}
		releaser := orphans.Releaser{Ledger: ledger, Judge: orphans.NewJudge()}
		if swept, sweepErr := releaser.Sweep(ctx, snapshot); sweepErr == nil && swept {
			before, err = ledger.Resize(ctx, id, shares, gpus, oci.Resize)
		}
	}
	if errors.Is(err, limiter.ErrHalfWritten) {
		err = fmt.Errorf("%w: start gpuslice-agent, which fixes it, or restart the container", err)
	}
	return before, err
}
