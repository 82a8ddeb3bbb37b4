package orphans

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/limiter"
)

// device is a directory's, as mountinfo has it.
func device(t testing.TB, dir string) string {
	var st unix.Stat_t
	require.NoError(t, unix.Stat(limiter.FilesDir(dir), &st))
	return fmt.Sprintf("%d:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)))
}

func TestIdentify(t *testing.T) {
	self, err := Procfs("/proc").Identify(os.Getpid())
	require.NoError(t, err)
	require.True(t, Procfs("/proc").Lives(self))
	self.Start++
	require.False(t, Procfs("/proc").Lives(self))
	_, err = Procfs("/proc").Identify(0)
	require.Error(t, err)
}
