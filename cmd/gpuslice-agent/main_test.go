package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/cmd/internal/config"
	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/oci"
)

// beAgent makes the test program the agent, for tests of its process.
const beAgent = "GPUSLICE_TEST_BE_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(beAgent) != "" {
		main()
	}
	others := slices.Concat(slices.Collect(maps.Values(aliases))...)
	for _, e := range os.Environ() { // the environment of the tests
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, config.EnvPrefix) || slices.Contains(others, name) {
			os.Unsetenv(name)
		}
	}
	nrilog.Set(quiet{}) // the adaptation logs each event
	if err := placeRuntime(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// placeRuntime writes a file beside the test program for the agent to install as
// gpuslice-runtime. These tests create no container.
func placeRuntime() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(filepath.Dir(self), "gpuslice-runtime"), []byte("#!/bin/false\n"), 0o755)
}

// agent runs the command up to where it would start, and returns the options that
// it would start with.
func agent(args ...string) (o options, started bool, status int, stdout, stderr string) {
	var out, complaint bytes.Buffer
	status = execute(context.Background(), append([]string{}, args...), &out, &complaint, func(_ context.Context, got options, _ *slog.Logger) error {
		o, started = got, true
		return nil
	})
	return o, started, status, out.String(), complaint.String()
}

// badValues are values of each flag that the agent must not start with.
var badValues = map[string][]string{
	"config":                        {"/nonexistent/agent.yaml"},
	"node-name":                     {"", "Node", "node 1", "-n", strings.Repeat("n", 254)},
	"state-dir":                     {"", "run/gpuslice"},
	"library-dir":                   {"", "lib"},
	"library":                       {"", "libvgpu.so"},
	"limiter-mode":                  {"", "Library", "preload,library"},
	"memory-enforcement":            {"", "driver", "native+preload"},
	"nri-socket":                    {"nri.sock"},
	"pod-resources-socket":          {"kubelet.sock"},
	"nvml-library":                  {""},
	"inventory-interval":            {"", "30", "999ms", "-1s", "often"},
	"ignore-xids":                   {"", "-1", "79,", "all", "79,x"},
	"device-injection":              {"", "CDI", "both"},
	"cdi-spec-dirs":                 {"", "cdi", "/etc/cdi,", "/etc/cdi,cdi"},
	"nvidia-runtime-handlers":       {"nvidia,", "a b"},
	"default-runtime-is-nvidia":     {"", "maybe"},
	"resource-api":                  {"", "DRA", "both"},
	"kubelet-dir":                   {"", "kubelet"},
	"device-plugin-dir":             {"device-plugins", "/" + strings.Repeat("d", 80)},
	"resource-name":                 {"", "gpu", "nvidia.com/", "nvidia.com/gpu,nvidia.com/other", "/gpu"},
	"allocation-policy":             {"", "Packed", "binpack"},
	"gds-enabled":                   {"", "maybe"},
	"mofed-enabled":                 {"", "maybe"},
	"gdrcopy-enabled":               {"", "maybe"},
	"imex-channel-ids":              {"-1", "x", "2048", "0,,1"},
	"pass-device-specs":             {"", "maybe"},
	"resource-profile":              {"", "HAMi", "hami,tencent"},
	"mig-strategy":                  {"", "Mixed", "both"},
	"mig-on-request":                {"", "maybe"},
	"node-config-file":              {"config.json"},
	"kubernetes-api":                {"", "true", "maybe"},
	"kubeconfig":                    {"config"},
	"register-format":               {"", "JSON", "yaml"},
	"answer-handshake":              {"", "maybe"},
	"gaia-model-label":              {"", "maybe"},
	"nvidia-labels":                 {"", "maybe"},
	"volcano-register":              {"", "maybe"},
	"resource-names":                {"", "nvidia.com/gpu,", "gpu", "nvidia.com/"},
	"device-split-count":            {"", "0", "-1", "1001", "2.5", "99999999999999999999"},
	"device-memory-scaling":         {"", "0", "-1", "101", "NaN", "Inf", "much"},
	"context-memory-mib":            {"", "-2", "16385", "1.5", "much"},
	"device-cores-scaling":          {"", "0", "-1", "101", "NaN", "-Inf", "much"},
	"disable-core-limit":            {"", "maybe"},
	"core-policy":                   {"", "Force", "always"},
	"unlimited-core-floor":          {"", "0", "-1", "101", "1.5"},
	"graphics":                      {"", "maybe"},
	"node-capacity":                 {"memory", "disk=nvidia.com/gpumem"},
	"grant-public-key-file":         {"keys", "./keys"},
	"unscheduled-policy":            {"", "Share", "allow"},
	"exempt-namespaces":             {"a,,b", "Kube", "a/b", strings.Repeat("n", 64)},
	"high-priority-namespaces":      {"a,,b", "Kube", "a/b", "*"},
	"requested-priority-namespaces": {"a,,b", "Kube", "a/b"},
	"disable-control-namespaces":    {"a,,b", "Kube", "a/b", "a*", "**"},
	"health-address":                {"9396", "localhost", "localhost:http", "127.0.0.1:65536"},
	"audit-interval":                {"", "999ms", "-1s", "often"},
	"on-violation":                  {"", "Kill", "end"},
	"violation-grace":               {"", "-1s", "25h", "long"},
	"legacy-metrics":                {"HAMi", "hami,", "prometheus"},
	"retire":                        {"", "maybe"},
	"node-condition":                {"", "maybe"},
	"require-native":                {"true", "maybe"},
	"debug-address":                 {"6060", "localhost", ":65536"},
	"metrics-address":               {"9394", "localhost", "localhost:http", ":65536"},
	"log-level":                     {"", "loud", "INFO+1"},
	"log-format":                    {"", "yaml"},
}

func eachFlag(visit func(f *pflag.Flag)) {
	var o options
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.bind(flags)
	flags.VisitAll(visit)
}

// Every flag is in the table, and every bad value is refused by the flag's name,
// wherever it comes from.
func TestBadValues(t *testing.T) {
	flags := 0
	eachFlag(func(f *pflag.Flag) {
		flags++
		require.NotEmpty(t, badValues[f.Name], "--%s has no bad values in the table", f.Name)
		for _, value := range badValues[f.Name] {
			t.Run(f.Name+"="+value, func(t *testing.T) {
				refused := func(stderr string, started bool, status int) {
					assert.False(t, started)
					assert.Equal(t, exitUsage, status)
					assert.Contains(t, stderr, f.Name)
				}
				if f.Name != "config" || value != "" {
					_, started, status, _, stderr := agent("--" + f.Name + "=" + value)
					refused(stderr, started, status)
				}
				t.Setenv(config.EnvName(f.Name), value)
				_, started, status, _, stderr := agent()
				refused(stderr, started, status)
			})
		}
	})
	require.Len(t, badValues, flags, "the table has a flag that is no more")
}

// All invalid values are reported together, in the manual's order.
func TestEveryBadValueIsReported(t *testing.T) {
	args := []string{"--log-format=x", "--library=a", "--state-dir=b", "--nri-socket=c", "--library-dir=d", "--device-split-count=0"}
	const want = `gpuslice-agent: --state-dir: must be an absolute path, not "b"
--library-dir: must be an absolute path, not "d"
--library: must be an absolute path, not "a"
--nri-socket: must be an absolute path, not "c"
--device-split-count: must be 1 to 1000 containers per GPU, not "0"
--log-format: must be text or json, not "x"
`
	for range 20 {
		_, _, _, _, stderr := agent(args...)
		require.Equal(t, want, stderr)
	}
}

func TestGoodValues(t *testing.T) {
	for _, args := range [][]string{
		{},
		{"--ignore-xids=79,119"},
		{"--device-plugin-dir=", "--allocation-policy=spread", "--resource-name=example.com/A100_80GB"},
		{"--health-address=:9396", "--device-injection=envvar", "--cdi-spec-dirs="},
		{"--device-memory-scaling=0.01", "--device-cores-scaling=100", "--device-split-count=1000", "--inventory-interval=1s"},
		{"--unscheduled-policy=share", "--device-split-count=100"},
		{"--unscheduled-policy=share", "--device-split-count=200", "--device-cores-scaling=2"},
		{"--resource-profile=tencent", "--mig-strategy=mixed", "--imex-channel-ids=0,2047", "--pass-device-specs", "--node-config-file=", "--disable-control-namespaces=lab,*"},
		{"--legacy-metrics=hami,gpu-manager", "--metrics-address="},
		{"--resource-api=dra", "--kubelet-dir=/k"},
		{"--kubernetes-api=off", "--kubeconfig=", "--register-format=csv", "--gaia-model-label", "--nvidia-labels", "--volcano-register"},
		{"--node-name=node-1.example.com", "--resource-names=nvidia.com/gpu,example.com/A100_80GB"},
	} {
		_, started, status, _, stderr := agent(append([]string{"--node-name=node-1"}, args...)...)
		assert.True(t, started, "%v: %s", args, stderr)
		assert.Equal(t, exitStopped, status, "%v", args)
	}
}

// Options that are valid separately, but not together.
func TestOptionsThatDoNotGoTogether(t *testing.T) {
	for _, test := range []struct {
		description string
		args        []string
		want        string
	}{
		{"an equal share that can't be limited", []string{"--unscheduled-policy=share", "--device-split-count=101"}, "--unscheduled-policy: must be deny, or a --device-split-count"},
		{"cores and memory of different GPUs", []string{"--unscheduled-policy=share", "--resource-profile=tencent"}, "--unscheduled-policy: must be deny with --resource-profile=tencent"},
		{"DRA without the NRI plugin", []string{"--resource-api=dra", "--nri-socket="}, "--resource-api: must be device-plugin without --nri-socket"},
		{"DRA without the API server", []string{"--resource-api=dra", "--kubernetes-api=off"}, "--resource-api: must be device-plugin with --kubernetes-api=off"},
		{"DRA without CDI", []string{"--resource-api=dra", "--cdi-spec-dirs=", "--device-injection=envvar"}, "--resource-api: must be device-plugin without --cdi-spec-dirs"},
		{"DRA and the capacity of the Node", []string{"--resource-api=dra", "--node-capacity=memory=nvidia.com/gpumem"}, "--resource-api: must be device-plugin with --node-capacity"},
		{"a directory that is too long for DRA", []string{"--resource-api=dra", "--kubelet-dir=/" + strings.Repeat("k", 80)}, "--kubelet-dir: must be a shorter directory"},
		{"whole devices as cores and memory", []string{"--mig-strategy=single", "--resource-profile=tencent"}, "--mig-strategy: must be none or mixed with --resource-profile=tencent"},
	} {
		t.Run(test.description, func(t *testing.T) {
			_, started, status, _, stderr := agent(append(test.args, "--node-name=n")...)
			assert.False(t, started)
			assert.Equal(t, exitUsage, status)
			assert.Contains(t, stderr, test.want)
		})
	}
}

func TestArgumentsThatAreNone(t *testing.T) {
	for _, args := range [][]string{{"start"}, {"--nope"}, {"-x"}} {
		_, started, status, _, stderr := agent(args...)
		assert.False(t, started)
		assert.Equal(t, exitUsage, status)
		assert.Contains(t, stderr, strings.TrimLeft(args[0], "-"))
	}
}

func TestPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.yaml")
	require.NoError(t, os.WriteFile(file, []byte("node-name: from-file\ndevice-split-count: 3\ncdi-spec-dirs: [/x, /y]\n"), 0o600))
	for _, test := range []struct {
		description string
		args        []string
		env         map[string]string
		wantNode    string
		wantCount   int
		wantDirs    []string
	}{
		{"defaults", nil, nil, hostName(), 10, []string{"/etc/cdi", "/var/run/cdi"}},
		{"the file over the defaults", []string{"--config=" + file}, nil, "from-file", 3, []string{"/x", "/y"}},
		{"the file named by the environment", nil, map[string]string{"GPUSLICE_CONFIG": file}, "from-file", 3, []string{"/x", "/y"}},
		{"the command line's file over the environment's", []string{"--config=" + file}, map[string]string{"GPUSLICE_CONFIG": "/nonexistent"}, "from-file", 3, []string{"/x", "/y"}},
		{"HAMi's variables over the file", []string{"--config=" + file}, map[string]string{"NODE_NAME": "kube", "DEVICE_SPLIT_COUNT": "4"}, "kube", 4, []string{"/x", "/y"}},
		{"HAMi's older variable", nil, map[string]string{"NodeName": "older"}, "older", 10, []string{"/etc/cdi", "/var/run/cdi"}},
		{"our variables over HAMi's", nil, map[string]string{"NODE_NAME": "kube", "GPUSLICE_NODE_NAME": "ours", "DEVICE_SPLIT_COUNT": "4", "GPUSLICE_DEVICE_SPLIT_COUNT": "5"}, "ours", 5, []string{"/etc/cdi", "/var/run/cdi"}},
		{"the command line over all", []string{"--config=" + file, "--node-name=line", "--device-split-count=6", "--cdi-spec-dirs=/z"}, map[string]string{"NODE_NAME": "kube", "GPUSLICE_NODE_NAME": "ours", "GPUSLICE_CDI_SPEC_DIRS": "/a"}, "line", 6, []string{"/z"}},
	} {
		t.Run(test.description, func(t *testing.T) {
			for name, value := range test.env {
				t.Setenv(name, value)
			}
			o, started, _, _, stderr := agent(test.args...)
			require.True(t, started, stderr)
			assert.Equal(t, test.wantNode, o.NodeName)
			assert.Equal(t, test.wantCount, o.SplitCount)
			assert.Equal(t, test.wantDirs, o.CDISpecDirs)
		})
	}
}

func TestSettings(t *testing.T) {
	o, _, _, _, _ := agent("--node-name=n", "--disable-core-limit", "--device-injection=envvar", "--default-runtime-is-nvidia")
	s := o.settings("/lib.so", "/preload", oci.Stubs{CUDA: "/cuda.so", NVML: "/nvml.so"})
	require.NoError(t, s.Validate())
	assert.Equal(t, "disable", string(s.CorePolicy))
	forced, _, _, _, _ := agent("--node-name=n", "--core-policy=force")
	assert.Equal(t, "force", string(forced.settings("", "", oci.Stubs{}).CorePolicy))
	_, started, _, _, stderr := agent("--node-name=n", "--core-policy=force", "--disable-core-limit")
	assert.False(t, started)
	assert.Contains(t, stderr, "core-policy")
	assert.Equal(t, "envvar", string(s.Injection))
	assert.True(t, s.DefaultRuntimeIsNvidia)
	assert.Equal(t, []string{"nvidia"}, s.NvidiaHandlers)
}

// The manual: every option with its variable, nothing wider than a terminal, what a
// person asks first.
func TestHelp(t *testing.T) {
	_, started, status, help, stderr := agent("--help")
	assert.False(t, started)
	assert.Equal(t, exitStopped, status)
	assert.Empty(t, stderr)
	eachFlag(func(f *pflag.Flag) {
		assert.Contains(t, help, "\n  --"+f.Name)
		assert.Contains(t, help, "("+config.EnvName(f.Name))
		assert.NotEmpty(t, f.Usage, f.Name)
	})
	for line := range strings.Lines(help) {
		assert.LessOrEqual(t, len(strings.TrimSuffix(line, "\n")), 80, line)
	}
	for _, heading := range []string{"gpuslice-agent runs on every GPU node", "Exit status:", "\nUsage:\n", "\nExamples:\n", "\nOptions:\n", "/healthz", "/readyz", "SIGTERM"} {
		assert.Contains(t, help, heading)
	}
	assert.Contains(t, help, `  --node-name NAME
        NAME of this node in Kubernetes, as in grants
        (GPUSLICE_NODE_NAME or NODE_NAME or NodeName; default "`+hostName()+`")
`)
	assert.Contains(t, help, `  --exempt-namespaces NAMESPACES
        NAMESPACES of which pods are not controlled: they can use whole GPUs
        without a grant
        (GPUSLICE_EXEMPT_NAMESPACES)
`)
}

func TestVersion(t *testing.T) {
	t.Setenv("GPUSLICE_VERSION", "set by an image, must not print the version")
	_, started, status, out, _ := agent("--version")
	assert.False(t, started)
	assert.Equal(t, exitStopped, status)
	assert.Equal(t, "gpuslice-agent version "+version.String()+"\n", out)

	_, started, _, _, stderr := agent("--node-name=n")
	assert.True(t, started, stderr)
}

// The process itself: statuses, and signals.
func TestProcess(t *testing.T) {
	start := func(args ...string) (*exec.Cmd, *bytes.Buffer) {
		var stderr bytes.Buffer
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), beAgent+"=1", "SIMGPU_STATE="+filepath.Join(t.TempDir(), "none"))
		cmd.Stderr = &stderr
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return cmd, &stderr
	}
	t.Run("a wrong option", func(t *testing.T) {
		cmd, stderr := start("--log-level=loud")
		require.Error(t, cmd.Wait())
		assert.Equal(t, exitUsage, cmd.ProcessState.ExitCode())
		assert.Contains(t, stderr.String(), "--log-level")
	})
	t.Run("a failure", func(t *testing.T) {
		cmd, stderr := start("--node-name=n", "--state-dir="+t.TempDir(), "--library=/nonexistent.so")
		require.Error(t, cmd.Wait())
		assert.Equal(t, exitFailed, cmd.ProcessState.ExitCode())
		assert.Contains(t, stderr.String(), "--library")
	})
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			o := testOptions(t)
			cmd, stderr := start(o.args()...)
			require.Eventually(t, func() bool { return get(o.HealthAddress, "/healthz").status == 200 }, time.Minute, 5*time.Millisecond, stderr)
			require.NoError(t, cmd.Process.Signal(signal))
			require.NoError(t, cmd.Wait(), stderr)
			assert.Contains(t, stderr.String(), "stopped")
		})
	}
}
