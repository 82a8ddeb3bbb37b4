package ociruntime

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// id is a container id as docker and podman make them.
const id = "8f1d6d3c0a5e4b7f9c2e1d0b3a4f5e6d7c8b9a0f1e2d3c4b5a69788796a5b4c3"

func TestParse(t *testing.T) {
	task := "/run/containerd/io.containerd.runtime.v2.task/moby/" + id
	for _, c := range []struct {
		description string
		line        string
		want        Call
	}{
		{
			"docker 20.10, containerd 1.4 to 1.7 shim",
			"--root /var/run/docker/runtime-runc/moby --log " + task + "/log.json --log-format json create --bundle " + task +
				" --pid-file " + task + "/init.pid " + id,
			Call{Command: "create", ID: id, Bundle: task, Root: "/var/run/docker/runtime-runc/moby", Log: task + "/log.json", LogFormat: "json"},
		},
		{
			"docker 23 and later, cgroup v2 with systemd, a terminal",
			"--root /var/run/docker/runtime-gpuslice/moby --log " + task + "/log.json --log-format json --systemd-cgroup create --bundle " + task +
				" --pid-file " + task + "/init.pid --console-socket /tmp/pty123/pty.sock " + id,
			Call{Command: "create", ID: id, Bundle: task, Root: "/var/run/docker/runtime-gpuslice/moby", Log: task + "/log.json", LogFormat: "json"},
		},
		{
			"docker 29, containerd 2",
			"--root /var/run/docker/runtime-gpuslice/moby --log " + task + "/log.json --log-format json --systemd-cgroup create --bundle " + task +
				" --pid-file " + task + "/init.pid --no-new-keyring " + id,
			Call{Command: "create", ID: id, Bundle: task, Root: "/var/run/docker/runtime-gpuslice/moby", Log: task + "/log.json", LogFormat: "json"},
		},
		{
			"containerd's CRI, runc.v2 shim",
			"--root /run/containerd/runc/k8s.io --log /run/x/log.json --log-format json create --bundle /run/x --pid-file /run/x/init.pid " + id,
			Call{Command: "create", ID: id, Bundle: "/run/x", Root: "/run/containerd/runc/k8s.io", Log: "/run/x/log.json", LogFormat: "json"},
		},
		{
			"ctr and nerdctl: ids that people choose",
			"--root /run/containerd/runc/default --log /run/x/log.json --log-format json create --bundle /run/x --pid-file /run/x/init.pid create",
			Call{Command: "create", ID: "create", Bundle: "/run/x", Root: "/run/containerd/runc/default", Log: "/run/x/log.json", LogFormat: "json"},
		},
		{
			"a rootless containerd",
			"--root /run/user/1000/runc --log /x/log.json --log-format json --rootless=true create --bundle /x -- web",
			Call{Command: "create", ID: "web", Bundle: "/x", Root: "/run/user/1000/runc", Log: "/x/log.json", LogFormat: "json", Rootless: "true"},
		},
		{
			"podman, conmon",
			"--log-format=json --log /run/user/c/oci-log create --bundle /c/userdata --pid-file /c/pidfile --console-socket /c/attach " + id,
			Call{Command: "create", ID: id, Bundle: "/c/userdata", Log: "/run/user/c/oci-log", LogFormat: "json"},
		},
		{
			"podman with systemd's cgroups and crun's own options",
			"--systemd-cgroup --cgroup-manager=systemd create --no-subreaper --bundle /c --preserve-fds 2 " + id,
			Call{Command: "create", ID: id, Bundle: "/c"},
		},
		{
			"crun with another config and options after the id",
			"run mine -b /b --config other.json",
			Call{Command: "run", ID: "mine", Bundle: "/b", Config: "other.json"},
		},
		{"by hand: in the bundle", "run web", Call{Command: "run", ID: "web"}},
		{"by hand: single dashes, =", "-root=/r -log=/l -debug run -detach -b=/b web", Call{Command: "run", ID: "web", Bundle: "/b", Root: "/r", Log: "/l"}},
		{"the word create as an option's value", "--root create --log create kill web", Call{Command: "kill", Root: "create", Log: "create"}},
		{"the word create as a bundle", "--log x run --bundle create --pid-file run web", Call{Command: "run", ID: "web", Bundle: "create", Log: "x"}},
		{"the word create as an id", "start create", Call{Command: "start"}},
		{"the word create as a process of exec", "exec web create --bundle /x", Call{Command: "exec"}},
		{"an option as a value", "--root --debug create --bundle -x web", Call{Command: "create", ID: "web", Root: "--debug", Bundle: "-x"}},
		{"a global option that isn't known, a switch", "--newer create -b /b web", Call{Command: "create", ID: "web", Bundle: "/b"}},
		{"a global option that isn't known, with a value", "--newer value create -b /b web", Call{Command: "create", ID: "web", Bundle: "/b"}},
		{"an option that isn't known, a switch", "create --newer -b /b web", Call{Command: "create", ID: "web", Bundle: "/b"}},
		{"an option that isn't known, with a value", "create --newer=value -b /b web", Call{Command: "create", ID: "web", Bundle: "/b"}},
		{"the last one of an option counts", "create -b /a --bundle /b web", Call{Command: "create", ID: "web", Bundle: "/b"}},
		{"restore", "restore --image-path /i --bundle /b --detach web", Call{Command: "restore", ID: "web", Bundle: "/b"}},
		{"delete", "--root /r delete --force web", Call{Command: "delete", ID: "web", Root: "/r"}},
		{"state", "--root /r state web", Call{Command: "state", Root: "/r"}},
		{"docker info", "--version", Call{Version: true}},
		{"docker 25: features", "features", Call{Command: "features"}},
		{"nothing", "", Call{}},
		{"options only", "--root /r --", Call{Root: "/r"}},
	} {
		t.Run(c.description, func(t *testing.T) {
			got, err := Parse(strings.Fields(c.line))
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestParseRefusesWhatItCanNotRead(t *testing.T) {
	for line, want := range map[string]string{
		"create":                      "create: the command line has no container ID",
		"create --bundle":             "create: the option --bundle has no value",
		"--root":                      "the option --root has no value",
		"run -b /b one two":           `run: the command line has several container IDs, ["one" "two"]`,
		"create --newer value web":    `create: the command line has several container IDs, ["value" "web"]: if --newer has a value, put a "=" before it`,
		"create -b /b one -- two -x":  `create: the command line has several container IDs, ["one" "two" "-x"]`,
		"create --bundle /b -- -- -x": `create: the command line has several container IDs, ["--" "-x"]`,
	} {
		_, err := Parse(strings.Fields(line))
		require.EqualError(t, err, want, line)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("--root /r create --bundle /b -- web")
	f.Add("-log= run -b=/b web --keep")
	f.Fuzz(func(t *testing.T, line string) {
		call, err := Parse(strings.Fields(line))
		if err == nil && call.createsContainer() && call.ID == "" {
			t.Errorf("%q makes a container without a name", line)
		}
	})
}
