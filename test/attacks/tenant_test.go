//go:build attacks

package attacks

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuslice/gpuslice/test/harness"
)

// What an attacker's container is granted, where it is granted anything.
const (
	attackerMiB   = 2000
	attackerCores = 10
)

// outcome is the allowed result of an attempt.
type outcome int

const (
	// wantNoGPU: the container runs, and finds no GPU.
	wantNoGPU outcome = iota
	// wantRefused: the container is not created, and the error states the reason.
	wantRefused
	// wantLimited: the container runs, and has its share to the byte.
	wantLimited
	// wantHeld: one of these. Which one depends on the runtime or the image.
	wantHeld
	// wantNothing: wantNoGPU or wantRefused, although the pod has a grant.
	wantNothing
)

// attempt is what a tenant tries by a pod's spec, an image or a command.
type attempt struct {
	// name begins with the number that docs/SECURITY.md gives.
	name      string
	granted   bool
	pod       map[string]string // annotations
	container harness.Container
	want      outcome
	// This text must be in a refusal.
	says string
	// command is tried inside first, by a shell; it must fail.
	command string
	// program is used in place of the workload that looks for GPUs, by a shell.
	program string
}

// place is where attempts are made: the node, and files of the tenant's own.
type place struct {
	n    *harness.Node
	uuid string
	dir  string
}

func (p place) device(name string) string { return filepath.Join(p.n.Dir, "dev", name) }
func (p place) own(name string) string    { return filepath.Join(p.dir, name) }

func mountOf(from, to string) []*cri.Mount {
	return []*cri.Mount{{HostPath: from, ContainerPath: to}}
}

func deviceAt(from string, to ...string) (list []*cri.Device) {
	for _, path := range to {
		list = append(list, &cri.Device{HostPath: from, ContainerPath: path, Permissions: "rwm"})
	}
	return list
}

// attempts are those that take nothing from others: one node has them all.
func (p place) attempts() []attempt {
	env := func(pairs ...string) harness.Container { return harness.Container{Env: pairs} }
	mount := func(from, to string) harness.Container { return harness.Container{Mounts: mountOf(from, to)} }
	devices := func(from string, to ...string) harness.Container {
		return harness.Container{Devices: deviceAt(from, to...)}
	}
	annotated := func(key, value string) harness.Container {
		return harness.Container{Annotations: map[string]string{key: value}}
	}
	named := func(name string) attempt {
		return attempt{name: fmt.Sprintf("82 container name %.12q", name), granted: true, container: harness.Container{Name: name}, want: wantNothing}
	}
	bind := workload("attack") + " rename "
	all := []attempt{
		// What is mounted into a container with a share.
		{name: "20 rename /etc", granted: true, command: bind + "/etc", want: wantLimited},
		{name: "20 rename /etc/ld.so.preload", granted: true, command: bind + "/etc/ld.so.preload", want: wantLimited},
		{name: "20 rename /usr/local", granted: true, command: bind + "/usr/local", want: wantLimited},
		{name: "20 unmount the limits", granted: true, command: "/bin/busybox umount /.gpuslice/limits || /bin/busybox umount /.gpuslice", want: wantLimited},
		{name: "17 rename the limiter's directory as a user", granted: true, container: harness.Container{User: 1000}, command: bind + "/.gpuslice", want: wantLimited},
		{name: "21 remount the limits", granted: true, command: "/bin/mount -o remount,rw /.gpuslice/limits || /bin/mount -o remount,rw /.gpuslice", want: wantLimited},
		{name: "21 change the limits' mode", granted: true, command: "/bin/busybox chmod 666 /.gpuslice/limits", want: wantLimited},
		{name: "21 write the limits", granted: true, command: "echo x >/.gpuslice/limits || /bin/busybox truncate -s 0 /.gpuslice/limits", want: wantLimited},
		{name: "22 a copy of the driver in LD_LIBRARY_PATH", granted: true, want: wantLimited,
			program: "/bin/busybox cp /usr/lib/" + harness.Triplet + "/libcuda.so.1 /usr/lib/" + harness.Triplet + "/libnvidia-ml.so.1 /tmp/; LD_LIBRARY_PATH=/tmp"},
		{name: "25 mknod of another GPU", granted: true, command: "/bin/busybox mknod /tmp/gpu c 195 1 && cat /tmp/gpu", want: wantLimited},
		{name: "25 mknod of the machine's memory", granted: true, command: "/bin/busybox mknod /tmp/mem c 1 1 && cat /tmp/mem", want: wantLimited},
		{name: "25 mknod without a grant", command: "/bin/busybox mknod /tmp/gpu c 195 0 && cat /tmp/gpu"},

		// CDI, past the kubelet.
		{name: "30 CRI's CDI field", container: harness.Container{CDIDevices: []string{"nvidia.com/gpu=all"}}, want: wantRefused, says: "no gpuslice grant"},
		{name: "31 a GPU in another vendor's CDI spec", container: harness.Container{CDIDevices: []string{"acme.com/dev=gpu"}}, want: wantRefused, says: "/dev/nvidia1"},
		{name: "32 a GPU under another name in a CDI spec", container: harness.Container{CDIDevices: []string{"acme.com/dev=alias"}}, want: wantRefused, says: "/dev/accel0"},
		{name: "33 CDI by an annotation of the container", container: annotated("cdi.k8s.io/x", "nvidia.com/gpu=0"), want: wantRefused, says: "no gpuslice grant"},
		{name: "33 our own CDI slices by an annotation", container: annotated("cdi.k8s.io/x", "gpuslice.io/slice=small"), want: wantRefused, says: "gpuslice.io/slice=small"},
		{name: "34 CDI by an annotation of the pod", pod: map[string]string{"cdi.k8s.io/x": "nvidia.com/gpu=0"}},
		{name: "35 a GPU by CDI beside a grant", granted: true, container: harness.Container{CDIDevices: []string{"nvidia.com/gpu=1"}}, want: wantRefused, says: "not of its grant"},

		// Device nodes.
		{name: "36 a GPU as another device", container: devices(p.device("nvidia1"), "/dev/foo"), want: wantRefused, says: "/dev/foo"},
		{name: "36 another GPU beside a grant", granted: true, container: devices(p.device("nvidia1"), "/dev/foo"), want: wantRefused, says: "/dev/foo"},
		{name: "36 the own GPU twice", granted: true, container: devices(p.device("nvidia0"), "/dev/foo", "/dev/bar"), want: wantRefused, says: "/dev/"},
		{name: "37 the control device under another name", container: devices(p.device("nvidiactl"), "/dev/ctl"), want: wantRefused, says: "/dev/ctl"},
		{name: "37 the control device beside a grant", granted: true, container: devices(p.device("nvidiactl"), "/dev/ctl"), want: wantHeld},

		// Mounts.
		{name: "38 a GPU mounted, oddly spelled", container: mount(p.device("nvidia1"), "/etc/../dev//nvidia1"), want: wantRefused, says: "nvidia1"},
		{name: "38 a directory at the MIG capabilities", container: mount(p.dir, "/dev/nvidia-caps"), want: wantRefused, says: "nvidia-caps"},
		{name: "39 a link to a GPU mounted", container: mount(p.own("link"), "/tmp/gpu"), command: "cat /tmp/gpu"},
		{name: "40 the node's devices over /dev", container: mount(filepath.Join(p.n.Dir, "dev"), "/dev"), want: wantHeld},
		{name: "41 a mount that asks NVIDIA's runtime, oddly spelled", container: mount(p.own("empty"), "/var/run//nvidia-container-devices/./x/../all"), want: wantRefused, says: "nvidia-container-devices"},
		{name: "41 a mount that asks NVIDIA's runtime by /run", container: mount(p.own("empty"), "/run/nvidia-container-devices/all"), want: wantHeld},
		{name: "42 a directory in which that mount point is", container: mount(p.own("run"), "/var/run")},
		{name: "89 a mount over the limits, oddly spelled", granted: true, container: mount(p.own("empty"), "//.gpuslice/./limits"), want: wantHeld},
		{name: "89 a relative mount over the limits", granted: true, container: mount(p.own("empty"), ".gpuslice/limits"), want: wantHeld},
		{name: "89 a directory as ld.so.preload", granted: true, container: mount(p.dir, "/etc/ld.so.preload"), want: wantHeld},
		{name: "89 a mount that spreads", granted: true, want: wantHeld, container: harness.Container{Mounts: []*cri.Mount{{
			HostPath: p.dir, ContainerPath: "/.gpuslice", Propagation: cri.MountPropagation_PROPAGATION_BIDIRECTIONAL,
		}}}},

		// Variables.
		{name: "43 an image that asks twice", container: harness.Container{Image: harness.TwiceImage}, want: wantRefused, says: "more than once"},
		{name: "43 an empty value and all", container: env("NVIDIA_VISIBLE_DEVICES=", "NVIDIA_VISIBLE_DEVICES=all"), want: wantRefused, says: "more than once"},
		{name: "43 void and all in one", container: env("NVIDIA_VISIBLE_DEVICES=void,all")},
		{name: "43 void in capitals", container: env("NVIDIA_VISIBLE_DEVICES=VOID")},
		{name: "43 a line feed in the name", container: env("X\nNVIDIA_VISIBLE_DEVICES=all")},
		{name: "45 MIG's configuration and IMEX channels", container: env("NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all", "NVIDIA_IMEX_CHANNELS=0")},
		{name: "46 only CUDA_VERSION", container: env("CUDA_VERSION=12.4", "NVIDIA_REQUIRE_CUDA=cuda>=9.0")},
		{name: "47 a limit that is no text", granted: true, container: env("CUDA_DEVICE_MEMORY_LIMIT_0=\xff\xfe", "CUDA_DEVICE_MEMORY_LIMIT=\xff"), want: wantHeld},
		{name: "47 limits of indices that are none", granted: true, want: wantHeld, container: env(
			"CUDA_DEVICE_MEMORY_LIMIT_00=140000m", "CUDA_DEVICE_MEMORY_LIMIT_+0=140000m", "CUDA_DEVICE_MEMORY_LIMIT_٠=140000m", "CUDA_DEVICE_MEMORY_LIMIT_ 0=140000m")},
		{name: "47 limits from another file", granted: true, container: env("VGPU_LIMITS_PATH=/tmp/limits", "VGPU_USAGE_PATH=/tmp/usage"), want: wantLimited},

		// Annotations that are not the tenant's.
		{name: "81 replicas by the pod", pod: map[string]string{"gpuslice.io/replicas": p.uuid + "::0"}, want: wantHeld},
		{name: "81 replicas by the container", container: annotated("gpuslice.io/replicas", p.uuid+"::0")},
		{name: "81 MIG devices by the pod", pod: map[string]string{"gpuslice.io/mig-1g.10gb": p.uuid + "::0"}, want: wantRefused, says: "gpuslice.io/mig-1g.10gb"},
		{name: "81 a whole GPU as MIG device", container: annotated("gpuslice.io/mig-1g.10gb", p.uuid+"::0"), want: wantRefused, says: "gpuslice.io/mig-1g.10gb"},
		{name: "81 a MIG device that isn't there", container: annotated("gpuslice.io/mig-1g.10gb", "MIG-00000000-0000-4000-8000-000000000000::0"), want: wantRefused, says: "MIG-00000000"},
		{name: "84 a ceiling of 1000 percent", granted: true, pod: map[string]string{"gpuslice.io/core-ceiling": "1000"}, want: wantRefused, says: "core-ceiling"},
		{name: "84 a ceiling with letters", granted: true, pod: map[string]string{"gpuslice.io/core-ceiling": "100abc"}, want: wantRefused, says: "core-ceiling"},
		named("MAIN"), named("main "), named("main;main"), named("mаin"), named("main\x00"), named("../main"), named(strings.Repeat("m", 300)),
	}
	for i := range imageLinks {
		for _, granted := range []bool{true, false} {
			all = append(all, attempt{name: fmt.Sprintf("86 an image with %s, granted=%v", imageLinks[i].name, granted), granted: granted,
				container: harness.Container{Image: imageLinks[i].image()}, want: wantHeld})
		}
	}
	for _, link := range []string{"vgpu", "vgpu/driver"} {
		all = append(all, attempt{name: "85 an image with a link and a volume below " + link, granted: true, want: wantHeld,
			container: harness.Container{Image: imageOf(volumeLinks[link]), Mounts: mountOf(p.own("volume"), "/data")}})
	}
	return all
}

// imageLinks are images with links that lead our mounts elsewhere.
var imageLinks = []imageLink{
	{"ld.so.preload at /dev/null", "etc/ld.so.preload", "/dev/null"},
	{"the usage at the limits", ".gpuslice/usage", "limits"},
	{"the limits at the usage", ".gpuslice/limits", "usage"},
	{"the limiter's directory in /proc", ".gpuslice", "/proc/self/fd"},
	{"the limiter's directory out of the root", ".gpuslice", "../../../../../../host"},
	{"the driver at /dev/null", "usr/lib/" + harness.Triplet + "/libcuda.so.1", "/dev/null"},
}

// volumeLinks are for images with a link that leads to a volume of the pod.
var volumeLinks = map[string]imageLink{
	"vgpu":        {"", ".gpuslice", "/data/vgpu"},
	"vgpu/driver": {"", ".gpuslice/driver", "/data/driver"},
}

type imageLink struct{ name, link, to string }

func (l imageLink) image() string { return imageOf(l) }

func imageOf(l imageLink) string {
	return "gpuslice.test/link-" + strings.NewReplacer("/", "-", ".", "-").Replace(strings.ToLower(l.link+"-"+strings.TrimLeft(l.to, "./"))) + ":1"
}

// prepare makes what the tenant brings along: files, CDI specs of another vendor, images.
func (p place) prepare(t *testing.T) {
	require.NoError(t, os.WriteFile(p.own("empty"), nil, 0o644))
	require.NoError(t, os.Symlink(p.device("nvidia1"), p.own("link")))
	for _, dir := range []string{"run/nvidia-container-devices/all", "volume/vgpu", "volume/driver"} {
		require.NoError(t, os.MkdirAll(p.own(dir), 0o777))
	}
	specs := filepath.Join(p.n.Containerd.Dir, "no-cdi")
	require.NoError(t, os.MkdirAll(specs, 0o755))
	spec := fmt.Sprintf(`{"cdiVersion":"0.6.0","kind":"acme.com/dev","devices":[
{"name":"gpu","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia1","hostPath":%[1]q}]}},
{"name":"alias","containerEdits":{"deviceNodes":[{"path":"/dev/accel0","hostPath":%[1]q}]}}]}`, p.device("nvidia1"))
	require.NoError(t, os.WriteFile(filepath.Join(specs, "acme.json"), []byte(spec), 0o644))
	nvidia, err := os.ReadFile(filepath.Join(p.n.CDIDir(), "nvidia.yaml"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(specs, "nvidia.yaml"), nvidia, 0o644))
	for _, l := range append(append([]imageLink(nil), imageLinks...), volumeLinks["vgpu"], volumeLinks["vgpu/driver"]) {
		root, err := harness.GlibcRoot()
		require.NoError(t, err)
		if dir := filepath.Dir(l.link); dir == ".gpuslice" {
			root.Dirs = append(root.Dirs, dir)
		}
		root.Links[l.link] = l.to
		archive := filepath.Join(t.TempDir(), "image.tar")
		require.NoError(t, harness.WriteImage(archive, imageOf(l), root))
		require.NoError(t, p.n.Import(context.Background(), archive))
	}
}

// A tenant tries all options of a pod's spec, an image and a shell, in sequence on one node: none gives a GPU
// without a grant, none gives more than its share, and the agent answers during all of them.
func TestTenantsAttempts(t *testing.T) {
	t.Parallel()
	at := freeMetrics(t)
	n := newNode(t, harness.NodeOptions{GPUs: []string{"H200", "H200"}, AgentArgs: []string{
		at.option(), "--audit-interval=1s", "--on-violation=kill", "--violation-grace=2s",
	}})
	p := place{n: n, uuid: gpu(t, n, 0), dir: t.TempDir()}
	p.prepare(t)
	probe(t, n, gpu(t, n, 1), answerWithin)
	for i, a := range p.attempts() {
		t.Run(a.name, func(t *testing.T) { p.try(t, fmt.Sprintf("p%d", i), a) })
	}
	t.Run("90 the metrics port", func(t *testing.T) { requireReadOnlyHTTP(t, at) })
	t.Run("23 a patched loader and a copy of the driver", p.patchedLoader)
}

// patchedLoader is open, see docs/SECURITY.md: a loader that reads no /etc/ld.so.preload, and a copy of the
// driver, give a program the whole GPU. The audit sees the process and ends it.
func (p place) patchedLoader(t *testing.T) {
	loader, err := os.ReadFile(harness.Loader)
	require.NoError(t, err)
	patched := bytes.ReplaceAll(loader, []byte("/etc/ld.so.preload"), []byte("/etc/ld.so.prelaod"))
	require.NotEqual(t, loader, patched)
	require.NoError(t, os.WriteFile(p.own("loader"), patched, 0o755))
	c := harness.Container{Mounts: mountOf(p.own("loader"), "/opt/loader"), Command: []string{"/bin/sh", "-c",
		"/bin/busybox cp /.gpuslice/driver/cuda /tmp/libcuda.so.1; /opt/loader --library-path /tmp:/lib/" + harness.Triplet + " " +
			workload("alloc") + " --max-mib=60000 --hold=0; echo ended=$?; sleep 1000000"}}
	s, _ := run(t, p.n, harness.Pod{Name: "patched", Annotations: granted(p.uuid, attackerMiB, attackerCores)}, c)
	wait(t, s, "ended", "137")
	require.Regexp(t, `violation found.*kind=(no-limiter|over-limit) .*pod=default/patched `, p.n.Agent.LogTail(2000))
}

func (p place) try(t *testing.T, name string, a attempt) {
	ctx := context.Background()
	annotations := map[string]string{}
	if a.granted {
		annotations = granted(p.uuid, attackerMiB, attackerCores)
	}
	for key, value := range a.pod {
		annotations[key] = value
	}
	s, err := p.n.RunPod(ctx, harness.Pod{Name: name, Annotations: annotations})
	require.NoError(t, err)
	defer func() { assert.NoError(t, s.Remove(ctx)) }()
	c := a.container
	if c.Name == "" {
		c.Name = "main"
	}
	id, err := s.Start(ctx, c)
	if err != nil {
		require.Contains(t, []outcome{wantRefused, wantHeld, wantNothing}, a.want, "%v", err)
		require.Contains(t, err.Error(), a.says)
		return
	}
	require.NotEqual(t, wantRefused, a.want, "the container was made")
	if a.command != "" {
		stdout, stderr, code, err := p.n.Exec(ctx, id, "/bin/sh", "-c", a.command)
		require.NoError(t, err)
		require.NotZero(t, code, "%s%s", stdout, stderr)
		require.NotContains(t, stderr, "not found", "the attempt could not be made")
	}
	has := requireHeld(t, p.n, id, a.program)
	switch a.want {
	case wantLimited:
		require.True(t, has, "it has its GPU")
	case wantNoGPU, wantNothing:
		require.False(t, has, "it has no GPU")
	case wantHeld:
		require.False(t, has && !a.granted, "it has no GPU")
	}
}

// requireHeld looks from inside a container: it has no GPU, or the attacker's share to the byte.
// It returns which.
func requireHeld(t *testing.T, n *harness.Node, id, prefix string) bool {
	t.Helper()
	ctx := context.Background()
	shell := func(line string) (map[string]string, int, string) {
		stdout, stderr, code, err := n.Exec(ctx, id, "/bin/sh", "-c", strings.TrimSpace(prefix+" "+line))
		require.NoError(t, err)
		return harness.KeyValues(stdout), code, stdout + stderr
	}
	v, code, said := shell(workload("meminfo"))
	if code != 0 {
		require.Contains(t, []int{3, 4}, code, said) // denied by the limiter, or no driver
		v, code, said = shell(workload("alloc") + " --max-mib=1")
		require.NotZero(t, code, said)
		require.Empty(t, v["allocated_bytes"])
		stdout, _, _, err := n.Exec(ctx, id, "/bin/sh", "-c", "echo visible=$NVIDIA_VISIBLE_DEVICES")
		require.NoError(t, err)
		require.Contains(t, []string{"", "void", "VOID"}, harness.KeyValues(stdout)["visible"])
		return false
	}
	require.Equal(t, "1", v["device_count"], said)
	require.Equal(t, fmt.Sprint(attackerMiB*mib), v["device.0.total_bytes"], said)
	v, _, said = shell(workload("alloc") + " --chunk-mib=10")
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", v["result"], said)
	require.Equal(t, fmt.Sprint((attackerMiB-contextMiB)/10*10*mib), v["allocated_bytes"], said)
	return true
}

// The metrics port only reads, for every client that reaches it.
func requireReadOnlyHTTP(t *testing.T, at metrics) {
	ask := func(method, path string) int {
		r, err := http.NewRequest(method, "http://"+string(at), strings.NewReader("x"))
		require.NoError(t, err)
		r.URL.Opaque = path // as it is: no cleaning
		response, err := (&http.Transport{}).RoundTrip(r)
		require.NoError(t, err)
		defer response.Body.Close()
		return response.StatusCode
	}
	require.Equal(t, http.StatusOK, ask(http.MethodGet, "/metrics"))
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodTrace, http.MethodPatch} {
		for _, path := range []string{"/metrics", "/", "/api/v1/view"} {
			require.Equal(t, http.StatusMethodNotAllowed, ask(method, path), "%s %s", method, path)
		}
	}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/profile", "/../../etc/passwd", "/metrics/../../../etc/passwd", "/..%2f..%2fetc/passwd", "//etc/passwd"} {
		require.Contains(t, []int{http.StatusNotFound, http.StatusTemporaryRedirect, http.StatusMovedPermanently, http.StatusBadRequest}, ask(http.MethodGet, path), path)
	}
	conn, err := net.Dial("tcp", string(at))
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write(bytes.Repeat([]byte{0}, 1<<10))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, ask(http.MethodGet, "/metrics"))
}
