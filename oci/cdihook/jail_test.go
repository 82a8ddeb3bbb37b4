package cdihook

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// hookEnv has this test's program be the hooks' program: a runtime calls it so.
const hookEnv = "GPUSLICE_TEST_CDI_HOOK"

func TestMain(m *testing.M) {
	if os.Getenv(hookEnv) != "" {
		os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestFirstProcfs(t *testing.T) {
	const mounts = `21 1 0:20 / /proc rw,nosuid shared:5 - proc proc rw
22 1 0:21 / /proc/root rw - overlay overlay rw
23 22 0:22 / /proc/rooted rw - proc proc rw
24 22 0:23 / /proc/root/sys rw - sysfs sysfs rw
25 22 0:20 / /proc/root/a\040b\134c rw master:1 - proc proc rw
26 22 0:24 / /proc/root/proc rw - proc proc rw
`
	require.Equal(t, `/proc/root/a b\c`, firstProcfs(mounts, "/proc/root"))
	require.Equal(t, "/proc", firstProcfs(mounts, "/proc"))
	require.Empty(t, firstProcfs(mounts, "/proc/root/sys"))
	require.Empty(t, firstProcfs("garbage\n\n", "/"))
}
