package plugin

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	kubescheduler "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"
)

const installed = "../../install/scheduler"

// The configuration that clusters are given is read by kube-scheduler, and here by the plugin.
func TestShippedConfiguration(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(installed, "config.yaml"))
	require.NoError(t, err)
	var config kubescheduler.KubeSchedulerConfiguration
	require.NoError(t, yaml.UnmarshalStrict(text, &config))
	profile := config.Profiles[0]
	require.Equal(t, Name, profile.Plugins.Bind.Enabled[0].Name, "before DefaultBinder")
	var ours *Args
	var ignored []string
	for _, p := range profile.PluginConfig {
		switch p.Name {
		case Name:
			ours, err = ParseArgs(&runtime.Unknown{Raw: p.Args.Raw})
			require.NoError(t, err)
		case "NodeResourcesFit":
			var fit kubescheduler.NodeResourcesFitArgs
			require.NoError(t, yaml.UnmarshalStrict(p.Args.Raw, &fit))
			ignored = fit.IgnoredResources
		}
	}
	require.Equal(t, AnnotateWithBinding, ours.Annotate)
	names := ours.Engine().Request.Names
	require.ElementsMatch(t, []string{names.Memory, names.MemoryPercentage, names.Cores, names.Priority}, ignored,
		"what is in no node's allocatable, and nothing else")

	text, err = os.ReadFile(filepath.Join(installed, "extender-config.yaml"))
	require.NoError(t, err)
	var stock kubescheduler.KubeSchedulerConfiguration
	require.NoError(t, yaml.UnmarshalStrict(text, &stock))
	require.False(t, stock.Extenders[0].Ignorable)
	ignored = nil
	for _, r := range stock.Extenders[0].ManagedResources {
		if r.IgnoredByScheduler {
			ignored = append(ignored, r.Name)
		}
	}
	require.ElementsMatch(t, []string{names.Memory, names.MemoryPercentage, names.Cores, names.Priority}, ignored)
}

func TestShippedManifests(t *testing.T) {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, name := range []string{"scheduler.yaml", "extender.yaml"} {
		text, err := os.ReadFile(filepath.Join(installed, name))
		require.NoError(t, err)
		for _, document := range bytes.Split(text, []byte("\n---\n")) {
			_, _, err := decoder.Decode(document, nil, nil)
			require.NoError(t, err, "%s: %s", name, document)
		}
	}
}

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
