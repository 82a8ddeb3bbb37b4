//go:build root

package docker_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// requireRefused runs a container that must be refused, and returns docker's output.
func (d docker) requireRefused(t testing.TB, options ...string) string {
	t.Helper()
	out, err := d.Docker(context.Background(), sliced(append(options, harness.WorkloadImage, workload("meminfo"))...)...)
	require.Error(t, err, out)
	require.Contains(t, err.Error(), "exit status 125", "docker run's own error") // not the program's
	return err.Error()
}

func fullGPU(t *testing.T, d docker) {
	first := d.start(t, share(140000, 50))
	said := d.requireRefused(t, share(8192, 10)...)
	require.Contains(t, said, "gpuslice: ")
	require.Contains(t, said, "8GiB of memory", "what was asked")
	require.Contains(t, said, "3771 MiB", "what is free")
	requireReserved(t, d.m, 140000, 1)
	requireSees(t, d.exec(t, first, workload("meminfo")), 140000)
	d.remove(t, first)
	requireSees(t, d.run(t, share(8192, 10), workload("meminfo")), 8192)
}

func refusals(t *testing.T, d docker) {
	require.NoError(t, d.m.WriteRuntimeConfig("maximum:\n  memory: 40GiB\n  cores: 50\n"))
	defer func() { require.NoError(t, d.m.WriteRuntimeConfig("")) }()
	for _, test := range []struct {
		description string
		options     []string
		say         string
	}{
		{"no number", []string{"-e", "GPUSLICE_MEMORY=much"}, "GPUSLICE_MEMORY"},
		{"more than one may have", []string{"-e", "GPUSLICE_MEMORY=41GiB"}, "40960 MiB"},
		{"more compute time than one may have", share(1000, 51), "50"},
		{"more GPUs than there are", []string{"-e", "GPUSLICE_MEMORY=1GiB", "-e", "GPUSLICE_DEVICES=2"}, "2"},
		{"a GPU that isn't there", []string{"-e", "GPUSLICE_MEMORY=1GiB", "-e", "GPUSLICE_DEVICES=device=7"}, "7"},
		{"a priority that isn't theirs", []string{"-e", "GPUSLICE_MEMORY=1GiB", "-e", "GPUSLICE_PRIORITY=0"}, "allowHighPriority"},
		{"a rule for every device", []string{"--device-cgroup-rule", "a *:* rwm"}, `the rule "a *:* rwm"`},
		{"a rule for the driver's devices, beside a share", append(share(1000, 10), "--device-cgroup-rule", "c 195:* rwm"), `the rule "c 195:* rwm"`},
		{"a directory of the host over our places", append(share(1000, 10), "-v", d.m.Dir+":/etc"), "would make " + d.m.Dir + "/ld.so.preload"},
		{"the driver's library through /proc", append(share(1000, 10), "-e", "LD_PRELOAD=/proc/self/root/.gpuslice/driver/cuda"), "LD_PRELOAD has /proc/self/root"},
		{"a library by a path with a token of the loader", append(share(1000, 10), "-e", "LD_AUDIT=/opt/$LIB/../cuda"), "LD_AUDIT has /opt/$LIB"},
		{"the limit of a GPU that it can't have", append(share(1000, 10), "-e", "CUDA_DEVICE_SM_LIMIT_16=1"), "CUDA_DEVICE_SM_LIMIT_16"},
		{"two answers", []string{"-e", "GPUSLICE_MEMORY=1GiB", "-e", "CUDA_DEVICE_MEMORY_LIMIT=2048m"}, "CUDA_DEVICE_MEMORY_LIMIT"},
	} {
		t.Run(test.description, func(t *testing.T) {
			said := d.requireRefused(t, test.options...)
			require.Contains(t, said, "gpuslice: ")
			require.Contains(t, said, test.say)
			requireNothingLeft(t, d.m)
		})
	}
}

// brokenConfig: no container is made, with a request or without, and those that are
// there can be stopped and removed.
func brokenConfig(t *testing.T, d docker) {
	id := d.start(t, share(1000, 10))
	require.NoError(t, d.m.WriteRuntimeConfig("maximum:\n  memory: plenty\n"))
	defer func() { require.NoError(t, d.m.WriteRuntimeConfig("")) }()
	for _, options := range [][]string{nil, share(1000, 10)} {
		said := d.requireRefused(t, options...)
		require.Regexp(t, `runtime\.yaml:7\b.*plenty`, said)
	}
	requireSees(t, d.exec(t, id, workload("meminfo")), 1000)
	d.remove(t, id)
	// The file named the ledger's directory; the next container cleans up.
	require.NoError(t, d.m.WriteRuntimeConfig(""))
	d.run(t, share(140000, 100), "/bin/true")
}

// hardened: what else a container is started with doesn't change its share.
func hardened(t *testing.T, d docker) {
	for _, test := range []struct {
		description string
		options     []string
	}{
		{"a read-only root file system", []string{"--read-only"}},
		{"a user", []string{"--user", "1000"}},
		{"no capabilities", []string{"--cap-drop", "ALL"}},
		{"no new privileges", []string{"--security-opt", "no-new-privileges"}},
		{"all of it", []string{"--read-only", "--user", "1000:1000", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", "50", "--memory", "512m"}},
		{"the host's PID namespace", []string{"--pid", "host"}},
		{"an init", []string{"--init"}},
	} {
		t.Run(test.description, func(t *testing.T) {
			id := d.start(t, append(test.options, share(3000, 20)...))
			requireSees(t, d.exec(t, id, workload("meminfo")), 3000)
			v := d.exec(t, id, workload("alloc"))
			require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", v["result"])
			// No user inside can change the limits, not even root.
			_, err := d.Docker(context.Background(), "exec", id, "/bin/sh", "-c", "echo 0 >/.gpuslice/limits")
			require.Error(t, err)
			d.remove(t, id)
			requireNothingLeft(t, d.m)
		})
	}
}
