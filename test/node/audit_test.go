//go:build root

package node_test

import (
	"context"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuslice/gpuslice/test/harness"
)

// Images with the programs of testdata/cheat.c.
const (
	cheatImage     = "gpuslice.test/cheat:1"
	cheatMuslImage = "gpuslice.test/cheat-musl:1"
)

// buildCheats builds the program the three ways that get past the limiter.
func buildCheats(t *testing.T) (dynamic, musl, raw string) {
	dir := t.TempDir()
	state, err := harness.Artefact("sim", "obj")
	require.NoError(t, err)
	objects, err := filepath.Glob(filepath.Join(state, "*.o"))
	require.NoError(t, err)
	// libcuda.so.1 is made of all but the other programs' own.
	others := []string{"nvml", "simctl", "inject", "profiles", "config", "show", "cdi", "pids", "mig"}
	driver := []string{"-DRAW", "-static", "-pthread"}
	for _, o := range objects {
		name := strings.TrimSuffix(filepath.Base(o), ".o")
		other := false
		for _, prefix := range others {
			other = other || strings.HasPrefix(name, prefix)
		}
		if !other {
			driver = append(driver, o)
		}
	}
	build := func(name, compiler string, args ...string) string {
		out := filepath.Join(dir, name)
		args = append([]string{"-std=gnu11", "-O1", "-o", out, "testdata/cheat.c"}, args...)
		text, err := osexec.Command(compiler, args...).CombinedOutput()
		require.NoError(t, err, "%s", text)
		return out
	}
	return build("cheat", "cc", "-ldl"), build("cheat-musl", "musl-gcc"), build("cheat-raw", "cc", driver...)
}

// auditedNode is a node with an agent that audits every second, and with the cheats' images.
func auditedNode(t *testing.T, policy string) (n *harness.Node, raw string) {
	dynamic, musl, raw := buildCheats(t)
	n = newNode(t, harness.NodeOptions{AgentArgs: []string{
		"--audit-interval=1s", "--on-violation=" + policy, "--violation-grace=2s", "--limiter-mode=preload", "--exempt-namespaces=infra",
	}})
	glibc, err := harness.GlibcRoot()
	require.NoError(t, err)
	glibc.Files["opt/cheat"], glibc.Files["opt/cheat-raw"] = dynamic, raw
	other, err := harness.MuslRoot(t.TempDir(), true)
	require.NoError(t, err)
	other.Files["opt/cheat"] = musl
	for name, root := range map[string]harness.Root{cheatImage: glibc, cheatMuslImage: other} {
		archive := filepath.Join(t.TempDir(), "image.tar")
		require.NoError(t, harness.WriteImage(archive, name, root))
		require.NoError(t, n.Import(context.Background(), archive))
	}
	return n, raw
}

// copied is a shell's line that copies the driver and has a cheat use the copy.
var copied = "cat /usr/lib/" + harness.Triplet + "/libcuda.so.1 >/tmp/innocent.so; /opt/cheat /tmp/innocent.so "

// matches reports whether a line of a text has a pattern.
func matches(text, pattern string) bool { return regexp.MustCompile(pattern).MatchString(text) }

// suspect is a container, and what is to be found of it.
type suspect struct {
	name, namespace string
	granted         bool
	image, line     string
	env             []string
	mounts          []*cri.Mount
	kind            string // empty: nothing
}

// suspects are containers of every kind. The first process of each is a shell, which prints the result of the
// other.
func suspects(n *harness.Node) []suspect {
	// A way to the GPUs that no grant made: the driver's state, as a privileged pod has it.
	state := []*cri.Mount{{ContainerPath: "/run/stolen", HostPath: n.SimState()}}
	stolen := []string{"SIMGPU_STATE=/run/stolen"}
	return []suspect{
		{name: "honest", granted: true, line: workload("hold") + " --mib=300"},
		{name: "to-the-brim", granted: true, line: workload("alloc") + " --chunk-mib=1 --hold=0"},
		{name: "copied-driver", granted: true, image: cheatMuslImage, env: []string{harness.GcompatEnv}, line: copied + "dlsym 100", kind: "no-limiter"},
		{name: "static", granted: true, line: "/opt/cheat-raw - - 100", kind: "no-limiter"},
		{name: "past-the-limiter", granted: true, line: copied + "elf 5000", kind: "over-limit"},
		{name: "spoiler", granted: true, line: "(sleep 1; while true; do echo spoilt >/.gpuslice/usage; sleep 1; done) & " + workload("hold") + " --mib=10", kind: "damaged-usage-file"},
		{name: "thief", line: "/opt/cheat-raw - - 100", env: stolen, mounts: state, kind: "ungranted-process"},
		{name: "infrastructure", namespace: "infra", line: "/opt/cheat-raw - - 100", env: stolen, mounts: state},
	}
}

// The audit sees every way around the limiter and the grants from outside, and ends the process or leaves it,
// by the policy. Processes without a violation, exempt containers and the host's own processes continue.
func TestAudit(t *testing.T) {
	for _, policy := range []string{"report", "kill"} {
		t.Run(policy, func(t *testing.T) {
			ctx := context.Background()
			n, raw := auditedNode(t, policy)
			uuid := gpu(t, n, 0)
			host := osexec.Command(raw, "-", "-", "100")
			host.Env = append(os.Environ(), "SIMGPU_STATE="+n.SimState())
			require.NoError(t, host.Start())
			hostEnded := make(chan error, 1)
			go func() { hostEnded <- host.Wait() }()
			t.Cleanup(func() { _ = host.Process.Kill() })

			pods := map[string]*harness.Sandbox{}
			for _, s := range suspects(n) {
				p := harness.Pod{Name: s.name, Namespace: s.namespace}
				if s.granted {
					p.Annotations = hami(uuid, 2000, 10)
				}
				c := harness.Container{Name: "main", Image: cheatImage, Env: s.env, Mounts: s.mounts,
					Command: []string{"/bin/sh", "-c", s.line + "; echo ended=$?; sleep 1000000"}}
				if s.image != "" {
					c.Image = s.image
				}
				pods[s.name] = run(t, n, p)
				start(t, pods[s.name], c)
				waitReady(t, pods[s.name], c)
			}
			log := func() string { return n.Agent.LogTail(2000) }
			for _, s := range suspects(n) {
				if s.kind == "" {
					continue
				}
				reported := fmt.Sprintf(`kind=%s .*pod=\S*/%s `, s.kind, s.name)
				require.NoError(t, harness.Until(ctx, time.Minute, func(context.Context) error {
					if !matches(log(), `violation found" `+reported) {
						return fmt.Errorf("%s is not reported as %s", s.name, s.kind)
					}
					says, err := pods[s.name].Logs(harness.Container{Name: "main"})
					if err != nil || policy == "report" {
						return err
					}
					if harness.KeyValues(says)["ended"] != "137" {
						return fmt.Errorf("%s goes on: %s", s.name, says)
					}
					return nil
				}))
			}
			require.Regexp(t, `kind=host-process .*cheat|kind=host-process .*process \d+ \(\\"a\) R 1 \(sh`, log())
			require.Equal(t, policy == "kill", matches(log(), "processes killed for a violation"))
			for _, s := range suspects(n) {
				says, err := pods[s.name].Logs(harness.Container{Name: "main"})
				require.NoError(t, err)
				if s.kind == "" || policy == "report" {
					require.NotContains(t, says, "ended=", s.name)
				}
				if s.kind == "" {
					require.NotRegexp(t, `kind=.*pod=\S*/`+s.name+` `, log())
				}
			}
			require.Empty(t, hostEnded, "a process of the host is reported, and left")
			for _, p := range pods {
				require.NoError(t, p.Remove(ctx))
			}
			requireNothingLeft(t, n)
		})
	}
}
