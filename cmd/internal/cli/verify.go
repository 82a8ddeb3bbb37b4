//go:build linux && cgo

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/cmd/internal/verify"
	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/monitor/verification"
	"github.com/gpuslice/gpuslice/monitor/view"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/request"
	ociruntime "github.com/gpuslice/gpuslice/oci/runtime"
)

const verifyManual = `Checks on this node, against its real driver, that containers are isolated from
each other. Two containers with small shares of one GPU test each kind of
memory up to its limit, what CUDA and NVML show, and how they divide the GPU's
time. If an agent runs, a process that uses the GPU beside the shares must be
reported by its audit.

The two get their shares as a user's containers do: by "gpuslice run", with
--image by docker or podman. In a cluster "helm test" runs it in pods
(docs/VERIFY.md).

It takes only free room on a GPU, 4096 MiB and 30 % of its compute time at
least, reports if there is none, and ends no other container. The audit's
check takes a CUDA context more for a few seconds. All that it started ends
with it, also if it is killed.

The report is kept in LIBRARY-DIR/verify/report.json. "gpuslice doctor" warns
if it is of another driver, "gpuslice status" shows it, and the agent writes
it as the node's condition GPUShareIsolationVerified where the chart's
verify.enabled is set.

Exit status: 0 verified; 1 a check failed; 2 it could not run, or not all of
it.`

type verifyOptions struct {
	way                 verify.Command
	config, libraryDir  string
	sockets, pod, agent string
	engine              *choice
	timeout             time.Duration
	verbose             bool
}

func verifyCommand() *cobra.Command {
	var (
		o   verifyOptions
		out *output
	)
	c := &cobra.Command{
		Use:   "verify",
		Short: "Check the isolation of containers against this node's driver",
		Long:  verifyManual,
		Example: `  gpuslice verify
  gpuslice verify --image debian:12
  gpuslice verify -o json >report.json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c, out) },
	}
	f := c.Flags()
	f.SortFlags = false
	out = outputFlag(c, thisNode{}, false, formTable)
	f.StringVar(&o.way.GPU, "gpu", "", "Verify `GPU`, an index or a UUID; default: the one with the fewest containers.")
	f.StringVar(&o.way.Image, "image", "", "Run the probes in containers of `IMAGE`, which needs glibc; default: by gpuslice run.")
	o.engine = choiceFlag(c, false, "engine", "Container engine of --image: WORDS.", "docker", "podman")
	f.DurationVar(&o.timeout, "timeout", 2*time.Minute, "Give up after `DURATION`; a step gets a quarter of it.")
	f.BoolVar(&o.verbose, "verbose", false, "Print each step on standard error.")
	f.StringVar(&o.config, "config", api.RuntimeConfig, "Read the operator's limits from the config `FILE`.")
	f.StringVar(&o.libraryDir, "library-dir", "", "Directory `DIR` of the installed limiter; default: the config's.")
	f.StringVar(&o.way.Probe, "probe", "", "`PATH` of gpuslice-probe; default: beside the limiter.")
	f.StringVar(&o.sockets, "sockets", "", "In a pod of the chart: the probes' sockets are in the directory `DIR`.")
	f.StringVar(&o.pod, "pod", "", "In a pod of the chart: its `NAMESPACE/NAME`.")
	f.StringVar(&o.agent, "agent", "", "In a pod of the chart: `ADDRESS:PORT` of the node's agent.")
	return c
}

func (o verifyOptions) run(c *cobra.Command, out *output) error {
	if (o.sockets == "") != (o.pod == "") || (o.sockets == "") != (o.agent == "") {
		return errors.New("--sockets, --pod and --agent belong together: set all, or none")
	}
	if o.timeout < time.Minute {
		return errors.New("--timeout: a run can take a minute: set 1m at least")
	}
	loaded, problem := ociruntime.LoadConfig(o.config)
	if c.Flags().Changed("state-dir") {
		loaded.StateDir = stateDir(c)
	}
	o.libraryDir = cmp.Or(o.libraryDir, loaded.LibraryDir)
	config := verify.Config{Timeout: o.timeout, Progress: func(step string) {
		if o.verbose {
			fmt.Fprintf(c.ErrOrStderr(), "gpuslice: %s\n", step)
		}
	}}
	if o.sockets != "" {
		way := verify.Sockets{Dir: o.sockets, Pod: o.pod}
		defer way.End() // the pod ends with all of its containers
		config.Way, config.View = way, o.viewOfAgent
	} else if err := o.onHost(c, &config, loaded, problem); err != nil {
		return err
	}
	report, err := verify.Run(c.Context(), config)
	if err != nil {
		return err
	}
	report.Version, report.Program, report.At = verification.Version, version.String(), time.Now().UTC().Truncate(time.Second)
	if err := verification.Write(o.libraryDir, report); err != nil {
		return fmt.Errorf("%w: keep the report: %w", verify.ErrNotRun, err)
	}
	if err := out.print(c, report, nil, func(p page) error { return printVerification(p, report) }); err != nil {
		return work(err)
	}
	switch report.Outcome {
	case verification.Verified:
		return nil
	case verification.NotVerified:
		return work(errors.New("this node's isolation is not verified: see the failed checks above, and docs/VERIFY.md"))
	}
	return errors.New("not all checks ran: see above, and run it again")
}

// onHost has the probes run by gpuslice run, or by a container engine.
func (o verifyOptions) onHost(c *cobra.Command, config *verify.Config, loaded request.Config, problem error) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("GPU shares are reserved by root: %s", asRoot)
	}
	if problem != nil {
		return problem
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	way := o.way
	way.Engine = o.engine.value
	if way.Probe, err = findProbe(way.Probe, self, o.libraryDir); err != nil {
		return err
	}
	way.Self = []string{self, runName, "--config=" + o.config, "--state-dir=" + loaded.StateDir}
	config.Way = way
	config.View = func(ctx context.Context) (view.Node, bool, error) {
		// Without an agent the driver is asked, once a boot.
		if _, err := ociruntime.NewInventory(loaded, self).GPUs(ctx); err != nil {
			return view.Node{}, false, err
		}
		// The first container makes the ledger otherwise.
		store, err := ledger.Open(loaded.StateDir, ledger.WithRecovery(oci.RecoverClaim))
		if err != nil {
			return view.Node{}, false, err
		}
		store.Close()
		n, err := thisNode{}.view(ctx, loaded.StateDir)
		agent, runs := agentView(ctx, loaded.StateDir)
		n.Violations = agent.Violations
		return n, runs, err
	}
	if way.Image == "" {
		config.CDI = func(ctx context.Context) (bool, string) { return checkCDI(ctx, loaded) }
	}
	return nil
}

// checkCDI is doctor's.
func checkCDI(ctx context.Context, loaded request.Config) (ok bool, found string) {
	machine, err := doctor.NewMachine("/")
	if err != nil {
		return false, err.Error()
	}
	defer machine.Close()
	r := doctor.ExamineCDI(ctx, machine, doctor.Options{StateDir: loaded.StateDir, LibraryDir: loaded.LibraryDir, CDISpecDirs: loaded.CDISpecDirs})
	return r.State != doctor.Fail, r.Found
}

const probeName = "gpuslice-probe"

// findProbe looks where releases and `gpuslice install` put it.
func findProbe(path, self, libraryDir string) (string, error) {
	if path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("--probe: %w", err)
		}
		return filepath.Abs(path)
	}
	prefix := filepath.Dir(filepath.Dir(self))
	for _, dir := range []string{filepath.Join(prefix, "lib/gpuslice"), filepath.Join(prefix, "lib"), "/usr/lib/gpuslice", libraryDir} {
		if _, err := os.Stat(filepath.Join(dir, probeName)); err == nil {
			return filepath.Join(dir, probeName), nil
		}
	}
	return "", fmt.Errorf("%s is neither beside %s nor in %s: install gpuslice again (gpuslice install), or set --probe", probeName, self, libraryDir)
}

// agentAddress accepts the variable of a Service, tcp://ADDRESS:PORT, too.
func (o verifyOptions) agentAddress() string {
	address := o.agent
	for _, scheme := range []string{"tcp://", "http://"} {
		address = strings.TrimPrefix(address, scheme)
	}
	return strings.TrimSuffix(address, "/")
}

// viewOfAgent reads the view of the node's agent.
func (o verifyOptions) viewOfAgent(ctx context.Context) (n view.Node, agent bool, err error) {
	machine, err := doctor.NewMachine("/")
	if err != nil {
		return n, false, err
	}
	defer machine.Close()
	status, body, err := machine.Get(ctx, 0, "http://"+o.agentAddress()+"/api/v1/view")
	switch {
	case err != nil:
		return n, false, fmt.Errorf("the node's agent does not answer: %w", err)
	case status != http.StatusOK:
		return n, false, fmt.Errorf("the node's agent answers with status %d", status)
	}
	if err := json.Unmarshal([]byte(body), &n); err != nil {
		return n, false, fmt.Errorf("the node's agent: %w", err)
	}
	return n, true, nil
}

var verificationColors = map[verification.State]term.Color{verification.OK: term.Green, verification.Failed: term.Red, verification.NotRun: term.Yellow}

func printVerification(p page, r verification.Report) error {
	t := p.table(columns("CHECK", "RESULT", "EXPECTED", "FOUND")...)
	for _, row := range r.Rows {
		t.Row(row.Check, p.Paint(verificationColors[row.State], string(row.State)), row.Expected, term.Clean(row.Found))
	}
	if err := t.Write(p); err != nil {
		return err
	}
	v := verification.Judge(r, nil, r.Driver)
	_, err := fmt.Fprintf(p, "\n%s\n", term.Clean(v.Message))
	return err
}
