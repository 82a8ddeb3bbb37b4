package plugin

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
