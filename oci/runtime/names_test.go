package ociruntime

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/oci"
)

// A container is called what its engine calls it; what can't be that name is not used.
func TestNames(t *testing.T) {
	dir := t.TempDir()
	const other = "1111111111111111111111111111111111111111111111111111111111111111"
	docker, podman, podmanRun := filepath.Join(dir, "docker/containers"), filepath.Join(dir, "root/overlay-containers"), filepath.Join(dir, "run/overlay-containers")
	write(t, filepath.Join(docker, id, "config.v2.json"), `{"StreamConfig":{},"ID":"`+id+`","Name":"/train","Config":{"Image":"x"}}`, 0o600)
	write(t, filepath.Join(docker, other, "hostname"), "x", 0o644)
	write(t, filepath.Join(podman, "containers.json"), `[{"id":"`+other+`","names":["a"]},{"id":"`+id+`","names":["infer"],"metadata":"{}"}]`, 0o600)
	write(t, filepath.Join(podmanRun, "volatile-containers.json"), `[{"id":"`+id+`","names":["short"]}]`, 0o600)
	write(t, filepath.Join(dir, "forged", id, "config.v2.json"), `{"ID":"`+id+`","Name":"/\u001b[31m"}`, 0o600)
	write(t, filepath.Join(dir, "not-json", id, "config.v2.json"), `{`, 0o600)
	write(t, filepath.Join(dir, "fifo", id, "hostname"), "", 0o600)
	assert.NoError(t, unix.Mkfifo(filepath.Join(dir, "fifo", id, "config.v2.json"), 0o600))

	from := func(source string) []rspec.Mount {
		return []rspec.Mount{{Destination: "/proc", Source: "proc"}, {Destination: "/etc/hostname", Source: source}}
	}
	for _, test := range []struct {
		description string
		c           oci.Container
		bundle      string
		want        string
	}{
		{"docker", oci.Container{Mounts: from(filepath.Join(docker, id, "hostname"))}, "/run/bundle", "train"},
		{"docker, in the network of another container", oci.Container{Mounts: from(filepath.Join(docker, other, "hostname"))}, "/run/bundle", "train"},
		{"podman", oci.Container{}, filepath.Join(podman, id, "userdata"), "infer"},
		{"podman's hook, which knows no bundle", oci.Container{Mounts: []rspec.Mount{{Destination: "/dev/shm", Source: filepath.Join(podman, id, "userdata/shm")}}}, "/", "infer"},
		{"podman with --rm", oci.Container{Mounts: from(filepath.Join(podmanRun, id, "userdata/hostname"))}, filepath.Join(dir, "empty-containers", id, "userdata"), "short"},
		{"nerdctl", oci.Container{Annotations: map[string]string{"nerdctl/name": "web"}}, "/run/bundle", "web"},
		{"ctr", oci.Container{}, "/run/bundle", id},
		{"a name with control characters", oci.Container{Mounts: from(filepath.Join(dir, "forged", id, "hostname"))}, "/run/bundle", id},
		{"not JSON", oci.Container{Mounts: from(filepath.Join(dir, "not-json", id, "hostname"))}, "/run/bundle", id},
		{"a file that blocks", oci.Container{Mounts: from(filepath.Join(dir, "fifo", id, "hostname"))}, "/run/bundle", id},
		{"a user's file", oci.Container{Mounts: from("/dev/null")}, "/run/bundle", id},
	} {
		test.c.ID = id
		assert.Equal(t, test.want, nameOf(test.c, test.bundle), test.description)
	}
}

func TestIsName(t *testing.T) {
	accepted := regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,252}\z`)
	names := []string{"", "a", "9", "A-b_c.d", "-a", ".a", "a b", "a\n", "a\x00", "\u00e4", strings.Repeat("a", longestName), strings.Repeat("a", longestName+1)}
	for c := range 256 {
		names = append(names, string([]byte{byte(c)}), string([]byte{'a', byte(c)}))
	}
	for _, name := range names {
		assert.Equal(t, accepted.MatchString(name), isName(name), "%q", name)
	}
}
