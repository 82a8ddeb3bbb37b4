package ociruntime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/oci/native"
	"github.com/gpuslice/gpuslice/oci/request"
)

// NativeProbeName is the file in the state directory with the last probe.
const NativeProbeName = "native-probe.json"

const probeTimeout = 20 * time.Second

// native is the hook that sets the driver's memory limits, with NVML in another program.
func (r *Runtime) native() native.Setup {
	return native.Setup{Hook: r.Self, StateDir: r.Config.StateDir, Program: companion(r.Self), Library: r.Config.NVMLLibrary}
}

// ProbeNative returns why the driver has no memory limits. A success is valid for this boot, driver and list of GPUs.
func ProbeNative(ctx context.Context, c request.Config, self string) error {
	boot, err := hostBoot()
	if err != nil {
		return fmt.Errorf("probe the driver's memory limits: %w", err)
	}
	path := filepath.Join(c.StateDir, NativeProbeName)
	var last bootState
	if data, err := os.ReadFile(path); err == nil && json.Unmarshal(data, &last) == nil && last.ID == boot.ID && last.Driver == boot.Driver && last.GPUs == boot.GPUs {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, companion(self), native.Command, "--probe", "--nvml-library="+c.NVMLLibrary)
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	if data, err := json.Marshal(boot); err == nil {
		_ = atomicfile.Write(path, data, 0o600) // else the next container probes again
	}
	return nil
}

// checkRestore refuses the checkpoint of a container: crun calls no createRuntime hook for it.
func (c Call) checkRestore(spec *rspec.Spec) error {
	if c.Command == "restore" && spec.Hooks != nil && native.HasHook(spec.Hooks.CreateRuntime) {
		return errors.New("the driver limits its memory, which is not sure for a restored container: create it instead")
	}
	return nil
}
