//go:build attacks

package attacks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/harness"
)

// engine is a docker daemon with the runtime wrapper, on a machine with two GPUs.
type engine struct {
	*harness.Dockerd
	m   *harness.Machine
	dir string
}

func newEngine(t *testing.T) engine {
	m, err := harness.NewMachine(context.Background(), "H200", "H200")
	t.Cleanup(func() {
		if m != nil {
			assert.NoError(t, m.Close())
		}
	})
	require.NoError(t, err)
	require.NoError(t, m.WriteRuntimeConfig(""))
	d, err := harness.NewDockerd(context.Background(), m, harness.DockerdOptions{})
	t.Cleanup(func() {
		if d != nil {
			assert.NoError(t, d.Close(context.Background()))
		}
	})
	require.NoError(t, err)
	return engine{d, m, t.TempDir()}
}

func (e engine) device(name string) string { return filepath.Join(e.m.Dir, "dev", name) }

// asked are options of docker run for the attacker's share of the first GPU.
var asked = []string{"-e", fmt.Sprintf("GPUSLICE_MEMORY=%dMiB", attackerMiB), "-e", fmt.Sprintf("GPUSLICE_CORES=%d", attackerCores), "-e", "GPUSLICE_DEVICES=device=0"}

// start starts a container that stays, and returns its id.
func (e engine) start(options []string, image string) (string, error) {
	args := append(append([]string{"run", "--detach", "--network", "none", "--runtime", "gpuslice"}, options...), image)
	out, err := e.Docker(context.Background(), args...)
	return strings.TrimSpace(out), err
}

// requireHeld looks from inside: no GPU, or the attacker's share to the byte. It returns which.
func (e engine) requireHeld(t *testing.T, id string, options ...string) bool {
	t.Helper()
	inside := func(line string) (map[string]string, error) {
		args := append(append([]string{"exec"}, options...), id, "/bin/sh", "-c", line)
		out, err := e.Docker(context.Background(), args...)
		return harness.KeyValues(out), err
	}
	v, err := inside(workload("meminfo"))
	if err != nil {
		require.Regexp(t, "exit status [34]", err.Error())
		v, err = inside(workload("alloc") + " --max-mib=1")
		require.Error(t, err)
		require.Empty(t, v["allocated_bytes"])
		return false
	}
	require.Equal(t, "1", v["device_count"])
	require.Equal(t, fmt.Sprint(attackerMiB*mib), v["device.0.total_bytes"])
	v, err = inside(workload("alloc") + " --chunk-mib=10")
	require.NoError(t, err)
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", v["result"])
	require.Equal(t, fmt.Sprint((attackerMiB-contextMiB)/10*10*mib), v["allocated_bytes"])
	return true
}

// Rows D, M and S: all options of `docker run` and related commands, in sequence on one daemon. None gives a
// GPU without a share, and none gives more than the share.
func TestTenantsAttemptsInDocker(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	t.Run("options", e.options)
	t.Run("M requests that make no sense", e.senseless)
	t.Run("S12 images with links", e.linkedImages)
	t.Run("S commands to a running container", e.commands)
	require.NoError(t, e.RemoveAll(context.Background()))
	claims, err := os.ReadDir(filepath.Join(e.m.StateDir(), "containers"))
	if !errors.Is(err, fs.ErrNotExist) {
		require.NoError(t, err)
	}
	require.Empty(t, claims)
}

// These try to make and open the node of the second GPU, and the control device, which a container
// with a share may open.
const (
	openGPU     = "cat /tmp/volume || (/bin/busybox mknod /tmp/gpu c 195 1 && cat /tmp/gpu)"
	openControl = openGPU + " || (/bin/busybox mknod /tmp/ctl c 195 255 && cat /tmp/ctl)"
)

func (e engine) options(t *testing.T) {
	require.NoError(t, os.Symlink("/", filepath.Join(e.dir, "root")))
	for _, test := range []struct {
		name    string
		options []string
		// shared options are beside a share.
		shared bool
		want   outcome
	}{
		{"D1 a GPU as another device", []string{"--device", e.device("nvidia1") + ":/dev/foo"}, false, wantNothing},
		{"D1 another GPU beside a share", []string{"--device", e.device("nvidia1") + ":/dev/foo"}, true, wantRefused},
		{"D2 a rule to make every node", []string{"--device-cgroup-rule", "c *:* m"}, false, wantNothing},
		{"D3 a rule for every node", []string{"--device-cgroup-rule", "c *:* rwm"}, false, wantRefused},
		{"D4 a rule for the driver's mode setting", []string{"--device-cgroup-rule", "c 195:254 rwm"}, false, wantNothing},
		{"D5 a rule to read another GPU", []string{"--device-cgroup-rule", "c 195:1 r"}, true, wantRefused},
		{"D6 a rule for the own GPU", []string{"--device-cgroup-rule", "c 195:0 rwm"}, true, wantHeld},
		{"D7 a rule for block devices of that number", []string{"--device-cgroup-rule", "b 195:* rwm"}, false, wantNothing},
		{"D8 a rule for every device of minor 1", []string{"--device-cgroup-rule", "c *:1 rw"}, false, wantRefused},
		{"D9 a GPU's node as a volume", []string{"-v", e.device("nvidia1") + ":/tmp/volume"}, false, wantNothing},
		{"D9 a GPU's node as a volume beside a share", []string{"-v", e.device("nvidia1") + ":/tmp/volume"}, true, wantHeld},
		{"D13 --gpus all", []string{"--gpus", "all"}, false, wantNothing},
		{"D14 a tmpfs over the limiter's directory", []string{"--tmpfs", "/.gpuslice"}, true, wantHeld},
		{"D15 a tmpfs over /usr/local", []string{"--tmpfs", "/usr/local"}, true, wantHeld},
		{"D16 a tmpfs over /etc", []string{"--tmpfs", "/etc"}, true, wantHeld},
		{"D17 a volume over the limiter's directory", []string{"-v", "mine:/.gpuslice"}, true, wantHeld},
		{"D18 a volume over /usr/local", []string{"-v", "mine2:/usr/local"}, true, wantHeld},
		{"D19 a volume over the limits, oddly spelled", []string{"-v", "mine3:/./.gpuslice/../.gpuslice/limits"}, true, wantHeld},
		{"M2 a preload of the driver by ..", []string{"-e", "LD_PRELOAD=/.gpuslice/../.gpuslice/driver/cuda"}, true, wantRefused},
		{"M2 a preload of the driver by $LIB", []string{"-e", "LD_PRELOAD=/usr/$LIB/libcuda.so.1"}, true, wantRefused},
		{"M2 a library path of the driver", []string{"-e", "LD_LIBRARY_PATH=/.gpuslice/driver"}, true, wantRefused},
		{"S8 a grant as a label", []string{"--label", `gpuslice.io/grant={"version":1,"containers":{"main":[]}}`}, false, wantNoGPU},
	} {
		t.Run(test.name, func(t *testing.T) {
			options := test.options
			if test.shared {
				options = append(append([]string(nil), asked...), options...)
			}
			id, err := e.start(options, harness.WorkloadImage)
			defer func() { assert.NoError(t, e.RemoveAll(context.Background())) }()
			if err != nil {
				require.Contains(t, []outcome{wantRefused, wantNothing, wantHeld}, test.want, "%v", err)
				return
			}
			require.NotEqual(t, wantRefused, test.want, "the container was made")
			open := openControl
			if test.shared {
				open = openGPU
			}
			out, err := e.Docker(context.Background(), "exec", id, "/bin/sh", "-c", open)
			require.Error(t, err, out)
			require.Contains(t, err.Error(), "not permitted")
			has := e.requireHeld(t, id)
			require.False(t, has && !test.shared, "it has no GPU")
		})
	}
}

// senselessAtOnce is how many containers with such requests are made at a time.
const senselessAtOnce = 4

func (e engine) senseless(t *testing.T) {
	var requests [][2]string
	add := func(name string, values ...string) {
		for _, v := range values {
			requests = append(requests, [2]string{name, v})
		}
	}
	add("GPUSLICE_MEMORY", "-1", "0", "+1GiB", "1e3MiB", "0x10MiB", "１ＧｉＢ", "١GiB", "1GiB\n", "NaN", "Inf", "1.5.5GiB", "18446744073709551616MiB", "9223372036854775808", "99999999TiB",
		"101%", "-5%", "1000", "GiB", "1GiBB", "1\x01GiB", "all", "144000MiB")
	add("GPUSLICE_CORES", "101", "-1", "1e1", "30.5", "٣٠", "30 ", "%", "101%", "4294967301", "true")
	add("GPUSLICE_DEVICES", "3", "-1", "count=-1", "count=0", "device=00", "device=2", "device=0,0", "0", "GPU-x", "device=../0", "none0", "device=", "all,0", "device=gpu-00000001-5151-4000-8000-000000000001")
	var waiting sync.WaitGroup
	turns := make(chan struct{}, senselessAtOnce)
	for _, r := range requests {
		turns <- struct{}{}
		waiting.Go(func() {
			defer func() { <-turns }()
			options := []string{"-e", r[0] + "=" + r[1]}
			if r[0] != "GPUSLICE_MEMORY" {
				options = append(options, "-e", "GPUSLICE_MEMORY=1000MiB")
			}
			_, err := e.start(options, harness.WorkloadImage)
			if assert.Error(t, err, "%s=%q was granted", r[0], r[1]) {
				assert.Contains(t, err.Error(), "gpuslice: ", "%s=%q", r[0], r[1])
			}
		})
	}
	waiting.Wait()
	t.Logf("%d requests", len(requests))
	require.NoError(t, e.RemoveAll(context.Background()))
}

// linkedImages are made by containers without the wrapper, as a Dockerfile's RUN does.
func (e engine) linkedImages(t *testing.T) {
	ctx := context.Background()
	for i, l := range imageLinks {
		t.Run(l.name, func(t *testing.T) {
			path := "/" + l.link
			line := fmt.Sprintf("/bin/busybox mkdir -p %s && /bin/busybox rm -rf %s && /bin/busybox ln -s %s %s", filepath.Dir(path), path, l.to, path)
			name := fmt.Sprintf("link%d", i)
			_, err := e.Docker(ctx, "run", "--name", name, "--network", "none", "--runtime", "runc", harness.WorkloadImage, "/bin/sh", "-c", line)
			require.NoError(t, err)
			_, err = e.Docker(ctx, "commit", "--change", `CMD ["/bin/sleep", "2147483647"]`, name, name+":1")
			require.NoError(t, err)
			defer func() { assert.NoError(t, e.RemoveAll(ctx)) }()
			id, err := e.start(asked, name+":1")
			if err == nil {
				e.requireHeld(t, id)
			}
		})
	}
}

// commands are what docker can do to a container that has a share.
func (e engine) commands(t *testing.T) {
	ctx := context.Background()
	id, err := e.start(append([]string{"--name", "victim"}, asked...), harness.WorkloadImage)
	require.NoError(t, err)
	require.True(t, e.requireHeld(t, id))
	empty := filepath.Join(e.dir, "limits")
	require.NoError(t, os.WriteFile(empty, make([]byte, 4096), 0o644))
	docker := func(args ...string) error { _, err := e.Docker(ctx, args...); return err }
	for name, path := range map[string]string{"S1 docker cp over the limits": "/.gpuslice/limits", "S1 docker cp over ld.so.preload": "/etc/ld.so.preload", "S2 docker cp by a link": "/tmp/link/limits"} {
		t.Run(name, func(t *testing.T) {
			other, err := e.start(asked, harness.WorkloadImage)
			require.NoError(t, err)
			defer func() { assert.NoError(t, docker("rm", "--force", other)) }()
			require.NoError(t, docker("exec", other, "/bin/busybox", "ln", "-s", "/.gpuslice", "/tmp/link"))
			_ = docker("cp", empty, other+":"+path) // it may be refused
			e.requireHeld(t, other)
		})
	}
	t.Run("S4 docker update", func(t *testing.T) {
		require.NoError(t, docker("update", "--cpu-shares", "512", id))
		require.True(t, e.requireHeld(t, id))
	})
	t.Run("S5 docker exec with variables", func(t *testing.T) {
		require.True(t, e.requireHeld(t, id, "-e", "CUDA_DEVICE_MEMORY_LIMIT=0", "-e", "CUDA_DISABLE_CONTROL=true", "-e", "VGPU_LIMITS_PATH=/tmp/x", "-e", "LD_PRELOAD=", "-e", "LD_LIBRARY_PATH=/tmp"))
	})
	t.Run("S6 docker exec --privileged", func(t *testing.T) {
		if docker("exec", "--privileged", id, "/bin/true") == nil { // it needs all capabilities of the daemon
			require.True(t, e.requireHeld(t, id, "--privileged"))
		}
	})
	t.Run("S7 pause and restart", func(t *testing.T) {
		require.NoError(t, docker("pause", id))
		require.NoError(t, docker("unpause", id))
		require.True(t, e.requireHeld(t, id))
		require.NoError(t, docker("restart", "--time", "1", id))
		require.True(t, e.requireHeld(t, id))
	})
	t.Run("S9 another container's control group", func(t *testing.T) {
		other, err := e.start([]string{"--cgroup-parent", "/" + filepath.Base(e.m.Dir) + "/" + id}, harness.WorkloadImage)
		if err == nil {
			require.False(t, e.requireHeld(t, other))
		}
	})
	t.Run("S3 docker commit, and run it again", func(t *testing.T) {
		require.NoError(t, docker("commit", id, "again:1"))
		other, err := e.start(nil, "again:1") // the request is in the image now
		require.NoError(t, err)
		require.True(t, e.requireHeld(t, other))
		require.NoError(t, docker("rm", "--force", other))
		other, err = e.start([]string{"-e", "GPUSLICE_MEMORY=", "-e", "GPUSLICE_CORES=", "-e", "GPUSLICE_DEVICES="}, "again:1")
		require.NoError(t, err)
		require.False(t, e.requireHeld(t, other))
	})
}
