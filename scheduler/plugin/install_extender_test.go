package plugin

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	kubescheduler "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"
)

// The scheduler that the webhook sets exists: the stock kube-scheduler has a profile of
// that name, beside the one it has anyway.
func TestExtenderProfiles(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(installed, "extender-config.yaml"))
	require.NoError(t, err)
	var stock kubescheduler.KubeSchedulerConfiguration
	require.NoError(t, yaml.UnmarshalStrict(text, &stock))
	var names []string
	for _, p := range stock.Profiles {
		names = append(names, *p.SchedulerName)
	}
	require.ElementsMatch(t, []string{"default-scheduler", "gpuslice-scheduler"}, names)
}

// The extender has its settings and the keys at the configured path.
func TestExtenderSettings(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(installed, "extender.yaml"))
	require.NoError(t, err)
	var settings v1.ConfigMap
	var daemons appsv1.DaemonSet
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		switch {
		case bytes.Contains(document, []byte("kind: ConfigMap\n")):
			require.NoError(t, yaml.UnmarshalStrict(document, &settings))
		case bytes.Contains(document, []byte("kind: DaemonSet\n")):
			require.NoError(t, yaml.UnmarshalStrict(document, &daemons))
		}
	}
	read := func(text string) *Args {
		file := filepath.Join(t.TempDir(), "args.yaml")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		args, err := ReadArgs(file)
		require.NoError(t, err)
		return args
	}
	all := read(settings.Data["args.yaml"])

	pod := daemons.Spec.Template.Spec
	require.Contains(t, pod.Containers[0].Args, "--config=/etc/gpuslice/config/args.yaml")
	require.Contains(t, pod.Containers[0].Args, "--leader-elect=false", "it has no right to a Lease")
	volumes := map[string]v1.Volume{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = v
	}
	mounted := map[string]v1.Volume{}
	for _, m := range pod.Containers[0].VolumeMounts {
		mounted[m.MountPath] = volumes[m.Name]
	}
	require.Equal(t, settings.Name, mounted["/etc/gpuslice/config"].ConfigMap.Name)
	if all.GrantPrivateKeyFile != "" { // the chart's, as an operator's own settings may name one
		require.NotNil(t, mounted[filepath.Dir(all.GrantPrivateKeyFile)].Secret)
	}
}
