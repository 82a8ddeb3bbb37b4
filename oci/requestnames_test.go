package oci

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
)

func TestRequestNames(t *testing.T) {
	for config, want := range map[string][]string{
		"": nil,
		"#swarm-resource = \"DOCKER_RESOURCE_GPU\"\n":                                     nil,
		"disable-require = false\nswarm-resource = \"DOCKER_RESOURCE_GPU\"\n[a]\nb = 1\n": {"DOCKER_RESOURCE_GPU"},
		"swarm-resource='A, B,,NVIDIA_VISIBLE_DEVICES,C ' # two\n":                        {"A", "B", "C"},
		"[nvidia-container-cli]\nswarm-resource = \"A\"\n":                                nil,
		"\"swarm-resource\" = \"A\"":                                                      {"A"},
		"swarm-resource = A\n":                                                            nil,
		"swarm-resource = \n":                                                             nil,
		"swarm-resource = \"A=B\"":                                                        nil,
	} {
		assert.Equal(t, want, RequestNames(config), config)
	}
}

// Request variables that a container sets are void without a grant, and name the granted GPUs with one.
func TestVariablesOfSwarmResourceAreVoided(t *testing.T) {
	names := []string{"DOCKER_RESOURCE_GPU", "MY_GPU"}
	for _, test := range []struct {
		env  []string
		void []string
	}{
		{[]string{"DOCKER_RESOURCE_GPU=all"}, []string{"NVIDIA_VISIBLE_DEVICES=void", "DOCKER_RESOURCE_GPU=void"}},
		{[]string{"NVIDIA_VISIBLE_DEVICES=void", "MY_GPU=" + gpu1}, []string{"NVIDIA_VISIBLE_DEVICES=void", "MY_GPU=void"}},
		{[]string{"NVIDIA_VISIBLE_DEVICES=all", "MY_GPU="}, []string{"NVIDIA_VISIBLE_DEVICES=void", "MY_GPU=void"}},
		{[]string{"MY_GPU=void"}, nil},
		{[]string{"OTHER_GPU=all"}, nil},
	} {
		void := Void(Container{Env: test.env, RequestNames: names})
		if test.void == nil {
			assert.Nil(t, void, "%v", test.env)
			continue
		}
		require.NotNil(t, void, "%v", test.env)
		assert.Equal(t, test.void, void.Env, "%v", test.env)
	}

	c := Container{Env: []string{"DOCKER_RESOURCE_GPU=all"}, RequestNames: names, Dir: "/run/gpuslice/containers/c", RuntimeHandler: "nvidia"}
	for way, want := range map[Injection]string{InjectCDI: "void", InjectEnvvar: gpu0} {
		s := testSettings()
		s.Injection = way
		result, err := Edits([]grant.Share{{UUID: gpu0, MemoryMiB: 1000, CorePercent: 10}}, s, c, testRegistry(t))
		require.NoError(t, err)
		assert.Contains(t, result.Edits.Env, "DOCKER_RESOURCE_GPU="+want, way)
		assert.Contains(t, result.Edits.Env, "NVIDIA_VISIBLE_DEVICES="+want, way)
	}
}

// With any configuration, each name is a valid name of a variable.
func FuzzRequestNames(f *testing.F) {
	f.Add("swarm-resource = \"DOCKER_RESOURCE_GPU, B\" # c\n[x]\n")
	f.Add("a = 1\nswarm-resource='A'\n")
	f.Fuzz(func(t *testing.T, config string) {
		for _, name := range RequestNames(config) {
			require.NotEmpty(t, name)
			require.NotContains(t, name, "=")
		}
	})
}
