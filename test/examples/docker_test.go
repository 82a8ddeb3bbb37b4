// Package examples compares the examples for docker and podman with what gpuslice-runtime reads from them. Those for
// Kubernetes are in cmd/gpuslice-scheduler.
package examples

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gpuslice/gpuslice/oci/request"
)

const dir = "../../examples/"

type service struct {
	Image, Runtime string
	Command        []string
	Environment    map[string]string
	Devices, Ports []string
	ShmSize        string `yaml:"shm_size"`
}

func read(t *testing.T, name string, into any) (text string) {
	t.Helper()
	data, err := os.ReadFile(dir + name)
	require.NoError(t, err)
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	require.NoError(t, decoder.Decode(into))
	return string(data)
}

// config is the operator's, with slices.
func config(t *testing.T) request.Config {
	t.Helper()
	data, err := os.ReadFile(dir + "docker/runtime.yaml")
	require.NoError(t, err)
	c, err := request.Parse("runtime.yaml", data)
	require.NoError(t, err)
	require.Len(t, c.Slices, 2)
	return c
}

const slice = "gpuslice.io/slice="

func TestCompose(t *testing.T) {
	for _, name := range []string{"docker/compose.yaml", "docker/compose-slices.yaml"} {
		var file struct{ Services map[string]service }
		text := read(t, name, &file)
		require.NotEmpty(t, file.Services)
		stated := regexp.MustCompile(`(?m)^  # Gets: (\S+): (.*)$`).FindAllStringSubmatch(text, -1)
		require.Len(t, stated, len(file.Services), name)
		for _, m := range stated {
			require.Contains(t, file.Services, m[1])
			got, err := gets(file.Services[m[1]], config(t))
			require.NoError(t, err, m[1])
			require.Equal(t, m[2], got, "%s: %s", name, m[1])
		}
	}
}

// gets is what a service requests.
func gets(s service, c request.Config) (string, error) {
	if len(s.Devices) > 0 {
		name, _ := strings.CutPrefix(s.Devices[0], slice)
		if _, known := c.Slices[name]; !known {
			return "", fmt.Errorf("%s: runtime.yaml has no such slice", s.Devices[0])
		}
		return "the slice " + name, nil
	}
	if s.Runtime != "gpuslice" {
		return "", fmt.Errorf("the runtime is %q", s.Runtime)
	}
	var env []string
	for name, value := range s.Environment {
		env = append(env, name+"="+value)
	}
	r, err := request.FromContainer(env, nil, c)
	if err != nil || r == nil {
		return "", cmp.Or(err, fmt.Errorf("no request"))
	}
	if r.Slice != "" {
		return "the slice " + r.Slice, nil
	}
	return fmt.Sprintf("%d x %v", max(r.Devices.Count, 1), r.Amount), nil
}

func TestQuadlet(t *testing.T) {
	text, err := os.ReadFile(dir + "docker/embeddings.container")
	require.NoError(t, err)
	device := regexp.MustCompile(`(?m)^AddDevice=` + regexp.QuoteMeta(slice) + `(\S+)$`).FindSubmatch(text)
	require.NotNil(t, device)
	require.Contains(t, config(t).Slices, string(device[1]))
}

// The list has each example, and no other.
func TestReadme(t *testing.T) {
	page, err := os.ReadFile(dir + "README.md")
	require.NoError(t, err)
	for _, pattern := range []string{"kubernetes/*", "docker/*"} {
		files, err := filepath.Glob(dir + pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			require.Equal(t, 1, strings.Count(string(page), "]("+strings.TrimPrefix(file, dir)+")"), file)
		}
	}
}

// The checks refuse what they are for.
func TestWrong(t *testing.T) {
	for _, s := range []service{
		{Environment: map[string]string{"GPUSLICE_MEMORY": "8GiB"}},
		{Runtime: "gpuslice"},
		{Runtime: "gpuslice", Environment: map[string]string{"GPUSLICE_MEM": "8GiB"}},
		{Runtime: "gpuslice", Environment: map[string]string{"GPUSLICE_SLICE": "medium"}},
		{Devices: []string{slice + "medium"}},
	} {
		_, err := gets(s, config(t))
		require.Error(t, err, s)
	}
}
