package native

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/nvidia/hardware"
)

const (
	gpu   = "GPU-00000001-5151-4000-8000-000000000001"
	other = "GPU-00000002-5151-4000-8000-000000000002"
)

// fake is a driver that keeps limits by GPU and group. changed can falsify what is read.
type fake struct {
	limits  map[string]uint64
	setErr  map[string]error
	getErr  error
	changed func(*hardware.MemoryLimit)
	sets    int
}

func (f *fake) SetMemoryLimit(_ context.Context, uuid, cgroup string, hard uint64) error {
	f.sets++
	if err := f.setErr[uuid]; err != nil {
		return err
	}
	if f.limits == nil {
		f.limits = map[string]uint64{}
	}
	if f.limits[uuid+cgroup] = hard; hard == hardware.NoMemoryLimit {
		delete(f.limits, uuid+cgroup)
	}
	return nil
}

func (f *fake) MemoryLimit(_ context.Context, uuid, cgroup string) (hardware.MemoryLimit, error) {
	hard, has := f.limits[uuid+cgroup]
	if !has {
		return hardware.MemoryLimit{}, errors.New("not supported")
	}
	s := hardware.MemoryLimit{Hard: hard}
	if f.changed != nil {
		f.changed(&s)
	}
	return s, f.getErr
}

// Whatever differs from what was set is an error, and leaves no limit.
func TestApplyRefusesAnyDifference(t *testing.T) {
	limits := []Limit{{gpu, 8 << 20}, {other, 9 << 20}}
	broken := errors.New("broken")
	for name, d := range map[string]*fake{
		"one MiB more":     {changed: func(s *hardware.MemoryLimit) { s.Hard += 1 << 20 }},
		"one byte less":    {changed: func(s *hardware.MemoryLimit) { s.Hard-- }},
		"no limit":         {changed: func(s *hardware.MemoryLimit) { s.Hard = hardware.NoMemoryLimit }},
		"a soft limit":     {changed: func(s *hardware.MemoryLimit) { s.Soft = 1 }},
		"can't set":        {setErr: map[string]error{gpu: broken}},
		"can't set second": {setErr: map[string]error{other: broken}},
		"can't read":       {getErr: broken},
	} {
		_, err := Apply(t.Context(), d, "/cg", limits)
		require.Error(t, err, name)
		assert.Empty(t, d.limits, name)
	}
	d := &fake{}
	states, err := Apply(t.Context(), d, "/cg", limits)
	require.NoError(t, err)
	assert.Equal(t, []State{{UUID: gpu, Hard: 8 << 20}, {UUID: other, Hard: 9 << 20}}, states)
	require.Error(t, Check(limits, states[:1]))
	require.Error(t, Check(limits, []State{states[1], states[0]}))
}

func TestLimits(t *testing.T) {
	limits, err := Limits([]grant.Share{{UUID: gpu, MemoryMiB: 3}, {UUID: other, MemoryMiB: 4, CorePercent: 5}})
	require.NoError(t, err)
	assert.Equal(t, []Limit{{gpu, 3 << 20}, {other, 4 << 20}}, limits)
	for _, shares := range [][]grant.Share{nil, {{UUID: gpu}}, {{UUID: gpu, MemoryMiB: -1}}, {{UUID: gpu, MemoryMiB: 1 << 60}}, {{UUID: "MIG-a", MemoryMiB: 5}}} {
		_, err := Limits(shares)
		require.Error(t, err, "%v", shares)
	}
}

func TestProbe(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, Probe(t.Context(), &fake{}, root, []string{gpu, other}))
	require.ErrorContains(t, Probe(t.Context(), &fake{}, root, nil), "no GPU")
	require.ErrorContains(t, Probe(t.Context(), &fake{setErr: map[string]error{other: errors.New("old")}}, root, []string{gpu, other}), "old")
	require.ErrorContains(t, Probe(t.Context(), &fake{changed: func(s *hardware.MemoryLimit) { s.Hard++ }}, root, []string{gpu}), "not the 67108864 that were set")
	require.Error(t, Probe(t.Context(), &fake{}, filepath.Join(root, "absent"), []string{gpu}))
	left, err := os.ReadDir(root)
	require.NoError(t, err)
	assert.Empty(t, left, "no group is left")
}

const containerID = "c0ffee"

// scene is a container in the state in which a runtime calls createRuntime hooks.
type scene struct {
	hook          hook
	bundle, group string
	config        map[string]any
	driver        *fake
}

func newScene(t testing.TB) *scene {
	dir := t.TempDir()
	s := &scene{bundle: filepath.Join(dir, "bundle"), driver: &fake{}, config: map[string]any{
		"root": map[string]any{"path": "rootfs"}, "process": map[string]any{"capabilities": map[string]any{"bounding": []string{"CAP_CHOWN"}}},
	}}
	s.hook = hook{stateDir: filepath.Join(dir, "state"), proc: filepath.Join(dir, "proc"), root: filepath.Join(dir, "cgroup")}
	s.hook.ask = func(ctx context.Context, r Request) (Reply, error) {
		in, err := json.Marshal(r)
		return Answer(ctx, s.driver, bytes.NewReader(in)), err
	}
	s.group = filepath.Join(s.hook.root, "pods/"+containerID)
	for _, d := range []string{filepath.Join(s.bundle, "rootfs"), s.group, filepath.Join(s.hook.proc, "77")} {
		require.NoError(t, os.MkdirAll(d, 0o755))
	}
	s.write(t, s.group, "cgroup.procs", "77\n")
	s.write(t, s.group, "cgroup.max.descendants", "max\n")
	s.write(t, s.hook.proc, "77/cgroup", "1:cpu:/x\n0::/pods/"+containerID+"\n")
	s.mounts(t, "cgroup2 /sys/fs/cgroup rw") // the host's
	l, err := ledger.Open(s.hook.stateDir)
	require.NoError(t, err)
	defer l.Close()
	_, err = l.Claim(context.Background(), ledger.Claim{
		ContainerID: containerID, Owner: ledger.OwnerNRI, Container: "main", Shares: []grant.Share{{UUID: gpu, MemoryMiB: 8, CorePercent: 5}},
	}, map[string]grant.GPU{gpu: {MemoryMiB: 100, CorePercent: 100, Replicas: 10}}, func(string) error { return nil })
	require.NoError(t, err)
	return s
}

func (s *scene) write(t testing.TB, dir, name, text string) {
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
}

// mounts writes mountinfo: the container's are below its root directory, "<type> <point> <options>".
func (s *scene) mounts(t testing.TB, host string, container ...string) {
	rootfs, err := filepath.EvalSymlinks(filepath.Join(s.bundle, "rootfs"))
	require.NoError(t, err)
	text := fmt.Sprintf("1 1 0:1 / / rw - ext4 x rw\n2 1 0:1 / %s rw - ext4 x rw\n", rootfs)
	for i, m := range append([]string{host}, container...) {
		f := strings.Fields(m)
		if i > 0 {
			f[1] = rootfs + f[1]
		}
		text += fmt.Sprintf("%d 1 0:2 / %s %s - %s x rw\n", i+3, f[1], f[2], f[0])
	}
	s.write(t, s.hook.proc, "77/mountinfo", text)
}

func (s *scene) run(t *testing.T) error {
	config, err := json.Marshal(s.config)
	require.NoError(t, err)
	s.write(t, s.bundle, "config.json", string(config))
	state, err := json.Marshal(map[string]any{"id": containerID, "pid": 77, "bundle": s.bundle})
	require.NoError(t, err)
	return s.hook.limit(t.Context(), bytes.NewReader(state))
}

func TestHook(t *testing.T) {
	s := newScene(t)
	require.NoError(t, s.run(t))
	assert.Equal(t, map[string]uint64{gpu + s.group: 8 << 20}, s.driver.limits)
	most, err := os.ReadFile(filepath.Join(s.group, "cgroup.max.descendants"))
	require.NoError(t, err)
	assert.Equal(t, "0", string(most))
	r, err := ReadRecord(ledger.DirOf(s.hook.stateDir, containerID))
	require.NoError(t, err)
	assert.Equal(t, s.group, r.Cgroup)
	require.NoError(t, s.run(t), "a second time")
}

// A container that could leave its group, or of which the limit is not sure, is refused and has no limit that looks like one.
func TestHookRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(t *testing.T, s *scene)
		reason string
	}{
		"no claim":                      {func(_ *testing.T, s *scene) { s.hook.stateDir += "2" }, "no claim"},
		"the root group":                {func(t *testing.T, s *scene) { s.write(t, s.hook.proc, "77/cgroup", "0::/\n") }, "of its own"},
		"a group outside the namespace": {func(t *testing.T, s *scene) { s.write(t, s.hook.proc, "77/cgroup", "0::/../x\n") }, "of its own"},
		"a path that is not clean":      {func(t *testing.T, s *scene) { s.write(t, s.hook.proc, "77/cgroup", "0::/a/../pods\n") }, "of its own"},
		"only version 1":                {func(t *testing.T, s *scene) { s.write(t, s.hook.proc, "77/cgroup", "3:memory:/x\n") }, "version 2"},
		"another process in the group":  {func(t *testing.T, s *scene) { s.write(t, s.group, "cgroup.procs", "77\n78\n") }, "other processes"},
		"not in the group any more":     {func(t *testing.T, s *scene) { s.write(t, s.group, "cgroup.procs", "") }, "other processes"},
		"a group below":                 {func(t *testing.T, s *scene) { require.NoError(t, os.Mkdir(filepath.Join(s.group, "x"), 0o755)) }, "below it"},
		"no bound of groups": {func(t *testing.T, s *scene) {
			require.NoError(t, os.Remove(filepath.Join(s.group, "cgroup.max.descendants")))
		}, "making control groups"},
		"CAP_SYS_ADMIN": {func(_ *testing.T, s *scene) {
			s.config["process"] = map[string]any{"capabilities": map[string]any{"bounding": []string{"CAP_SYS_ADMIN"}}}
		}, "CAP_SYS_ADMIN"},
		"no process in the config": {func(_ *testing.T, s *scene) { delete(s.config, "process") }, "no root directory or no process"},
		"its control groups to write": {func(t *testing.T, s *scene) {
			s.mounts(t, "cgroup2 /sys/fs/cgroup rw", "cgroup2 /sys/fs/cgroup rw,nosuid")
		}, "mounted to write, at"},
		"hostPath /sys/fs/cgroup": {func(t *testing.T, s *scene) {
			s.mounts(t, "cgroup2 /sys/fs/cgroup rw", "cgroup2 /sys/fs/cgroup ro", "cgroup2 /host rw")
		}, "mounted to write, at"},
		"hostPath / with what is below": {func(t *testing.T, s *scene) {
			s.mounts(t, "cgroup2 /sys/fs/cgroup rw", "ext4 /host ro", "cgroup2 /host/sys/fs/cgroup rw")
		}, "mounted to write, at"},
		"groups of version 1": {func(t *testing.T, s *scene) {
			s.mounts(t, "cgroup2 /sys/fs/cgroup rw", "cgroup /sys/fs/cgroup/pids rw")
		}, "mounted to write, at"},
		"the driver refuses": {func(_ *testing.T, s *scene) { s.driver.setErr = map[string]error{gpu: errors.New("not supported")} }, "not supported"},
		"the driver forgets": {func(_ *testing.T, s *scene) {
			s.driver.changed = func(st *hardware.MemoryLimit) { st.Hard = hardware.NoMemoryLimit }
		}, "that were set"},
		"no answer":  {func(_ *testing.T, s *scene) { s.hook.ask = askAgent(filepath.Join(s.hook.stateDir, SocketName)) }, "does not answer"},
		"no program": {func(_ *testing.T, s *scene) { s.hook.ask = askProgram("/absent", "x") }, "no such file"},
		"an answer without limits": {func(_ *testing.T, s *scene) {
			s.hook.ask = func(context.Context, Request) (Reply, error) { return Reply{}, nil }
		}, "of 0 GPUs"},
		"an answer of another limit": {func(_ *testing.T, s *scene) {
			s.hook.ask = func(context.Context, Request) (Reply, error) {
				return Reply{States: []State{{UUID: gpu, Hard: 9 << 20}}}, nil
			}
		}, "not the 8388608 that were set"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			tt.change(t, s)
			require.ErrorContains(t, s.run(t), tt.reason)
			assert.Empty(t, s.driver.limits)
			_, err := ReadRecord(ledger.DirOf(s.hook.stateDir, containerID))
			require.ErrorIs(t, err, fs.ErrNotExist)
		})
	}
}

// crun makes mounts read-only after the hook, and only those of the config.
func TestHookOfCrun(t *testing.T) {
	const groups = "/sys/fs/cgroup"
	mount := func(kind, destination string, options ...string) map[string]any {
		return map[string]any{"type": kind, "destination": destination, "options": options}
	}
	ro, rw := mount("cgroup", groups, "nosuid", "ro"), mount("cgroup", groups, "nosuid")
	for name, tt := range map[string]struct {
		config  []map[string]any
		mounts  []string
		refused bool
	}{
		"read-only":                   {[]map[string]any{rw, ro}, []string{"cgroup2 " + groups + " rw"}, false},
		"read-only, not a clean path": {[]map[string]any{mount("cgroup", groups+"/", "ro")}, []string{"cgroup2 " + groups + " rw"}, false},
		"no mount of the config":      {nil, []string{"cgroup2 " + groups + " rw"}, true},
		"to write by the last":        {[]map[string]any{ro, rw}, []string{"cgroup2 " + groups + " rw"}, true},
		"to write by an option":       {[]map[string]any{mount("cgroup", groups, "ro", "rw")}, []string{"cgroup2 " + groups + " rw"}, true},
		"two, one on the other":       {[]map[string]any{ro}, []string{"cgroup2 " + groups + " rw", "cgroup2 " + groups + " rw"}, true},
		"a mount below":               {[]map[string]any{ro, mount("bind", "/host", "rbind", "ro")}, []string{"cgroup2 " + groups + " rw", "cgroup2 /host" + groups + " rw"}, true},
		"below another file system":   {[]map[string]any{mount("tmpfs", groups, "ro")}, []string{"cgroup2 " + groups + " rw"}, true},
		"a name that begins like it":  {[]map[string]any{ro}, []string{"cgroup2 " + groups + "2 rw"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.config["mounts"] = tt.config
			s.mounts(t, "cgroup2 /sys/fs/cgroup rw", tt.mounts...)
			if err := s.run(t); tt.refused {
				require.ErrorContains(t, err, "mounted to write, at")
			} else {
				require.NoError(t, err)
			}
		})
	}
}

func TestDelegates(t *testing.T) {
	const dir = "/sys/fs/cgroup"
	line := func(point, kind, options string) string {
		return fmt.Sprintf("31 1 0:28 / %s rw,nosuid shared:9 - %s cgroup2 %s\n", point, kind, options)
	}
	for mounts, right := range map[string]bool{
		line(dir, "cgroup2", "rw,nsdelegate,memory_recursiveprot"):                      true,
		line(dir, "tmpfs", "rw") + line(dir, "cgroup2", "rw,nsdelegate"):                true,
		line(dir, "cgroup2", "rw"):                                                      false,
		line(dir, "cgroup2", "rw,nsdelegated"):                                          false,
		line(dir, "tmpfs", "rw,nsdelegate") + line(dir, "cgroup2", "rw"):                false,
		line(dir+"/unified", "cgroup2", "rw,nsdelegate") + line(dir, "cgroup2", "rw,x"): false,
		"": false,
	} {
		if err := delegates(strings.NewReader(mounts), dir); right {
			require.NoError(t, err, mounts)
		} else {
			require.ErrorContains(t, err, "without nsdelegate", mounts)
		}
	}
	require.ErrorContains(t, delegates(strings.NewReader("31 1\n"), dir), "read the mount options")
}

// Containers with a claim in common have a control group each: only if no other has the claim, one gets a limit.
func TestHookOfACommonClaim(t *testing.T) {
	s := newScene(t)
	s.hook.stateDir += "2"
	l, err := ledger.Open(s.hook.stateDir)
	require.NoError(t, err)
	defer l.Close()
	join := func(id string) {
		_, err := l.Claim(t.Context(), ledger.Claim{
			ContainerID: id, Owner: ledger.OwnerNRI, PodUID: "u-" + id, PodNamespace: "ns", PodName: "p-" + id, Container: "main",
			ResourceClaims: []string{"uid.gpu"}, Shares: []grant.Share{{UUID: gpu, MemoryMiB: 8}},
		}.Common(), map[string]grant.GPU{gpu: {MemoryMiB: 100, CorePercent: 100, Replicas: 10}}, func(string) error { return nil })
		require.NoError(t, err)
	}
	join(containerID)
	require.NoError(t, s.run(t))
	assert.Equal(t, map[string]uint64{gpu + s.group: 8 << 20}, s.driver.limits)
	join("c0ffee02")
	require.ErrorContains(t, s.run(t), "in common with other containers")
}

func TestMainRefusesBadInput(t *testing.T) {
	for _, args := range [][]string{nil, {"--state-dir=relative"}, {"--state-dir=" + t.TempDir()}} {
		var stderr strings.Builder
		assert.Equal(t, 1, Main(t.Context(), args, strings.NewReader("{}"), &stderr))
		assert.Contains(t, stderr.String(), "gpuslice: can't set the driver's memory limits of this container: ")
	}
}

func TestHookIsRecognised(t *testing.T) {
	for _, setup := range []Setup{{Hook: "/lib/gpuslice-runtime-0", StateDir: "/run/g"}, {"/lib/gpuslice-runtime-0", "/run/g", "/usr/bin/gpuslice", "libnvidia-ml.so.1"}} {
		h := setup.Edit()
		assert.Equal(t, "createRuntime", h.HookName)
		assert.True(t, HasHook(ociHooks(h.Path, h.Args)), strconv.Quote(h.Path))
	}
	assert.False(t, HasHook(nil))
	assert.False(t, HasHook(ociHooks("/x", []string{"x", "check-mounts"})))
}

func ociHooks(path string, args []string) []rspec.Hook { return []rspec.Hook{{Path: path, Args: args}} }

func TestAskAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), SocketName)
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = json.NewEncoder(c).Encode(Answer(context.Background(), &fake{}, c))
			c.Close()
		}
	}()
	reply, err := askAgent(socket)(t.Context(), Request{"/cg", []Limit{{gpu, 5}}})
	require.NoError(t, err)
	assert.Equal(t, Reply{States: []State{{UUID: gpu, Hard: 5}}}, reply)
	reply, err = askAgent(socket)(t.Context(), Request{"relative", []Limit{{gpu, 5}}})
	require.NoError(t, err)
	assert.Contains(t, reply.Error, "read the request")
}
