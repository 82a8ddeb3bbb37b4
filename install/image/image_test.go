package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/stretchr/testify/require"
)

// built is a repository with built files that are not from our sources, which is quick. test/image runs the real image.
func built(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "LICENSE"), []byte("free\n"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "build"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "build", notices), []byte("of others\n"), 0o600))
	source := filepath.Join(dir, "main.c")
	require.NoError(t, os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o600))
	compile := func(to string, args ...string) {
		to = filepath.Join(dir, "build", to)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		out, err := exec.Command("gcc", append([]string{source, "-o", to}, args...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	for _, name := range programs {
		compile(filepath.Join("bin", name))
	}
	compile(filepath.Join("bin", programs[0]), "-static")
	compile(filepath.Join("bin", programs[1]), "-Wl,--no-as-needed", "-lresolv")
	for _, name := range limiter {
		compile(filepath.Join("lib", name), "-shared")
	}
	return dir
}

func build(t *testing.T, repository, version string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	require.NoError(t, run([]string{"-repository", repository, "-out", dir, "-name", "registry.example/gpuslice:v1", "-version", version}))
	return dir
}

// blobs are the files of an archive.
func blobs(t *testing.T, archive string) map[string][]byte {
	t.Helper()
	f, err := os.Open(archive)
	require.NoError(t, err)
	defer f.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		files[h.Name], err = io.ReadAll(r)
		require.NoError(t, err)
	}
}

func parse[T any](t *testing.T, data []byte) (v T) {
	t.Helper()
	require.NoError(t, json.Unmarshal(data, &v))
	return v
}

// open reads an archive's index, manifest and configuration.
func open(t *testing.T, archive string) (v1.IndexManifest, v1.Manifest, v1.ConfigFile) {
	t.Helper()
	files := blobs(t, archive)
	blob := func(h v1.Hash) []byte { return files["blobs/"+h.Algorithm+"/"+h.Hex] }
	index := parse[v1.IndexManifest](t, files["index.json"])
	require.Len(t, index.Manifests, 1)
	manifest := parse[v1.Manifest](t, blob(index.Manifests[0].Digest))
	require.Len(t, manifest.Layers, 2)
	for _, layer := range manifest.Layers {
		require.NotEmpty(t, blob(layer.Digest))
	}
	return index, manifest, parse[v1.ConfigFile](t, blob(manifest.Config.Digest))
}

func TestTheSameBytesTwice(t *testing.T) {
	repository := built(t)
	sum := func(dir string) [32]byte {
		data, err := os.ReadFile(filepath.Join(dir, "gpuslice.tar"))
		require.NoError(t, err)
		return sha256.Sum256(data)
	}
	first := build(t, repository, "v1")
	require.Equal(t, sum(first), sum(build(t, repository, "v1")))
	require.NotEqual(t, sum(first), sum(build(t, repository, "v2")))
	// The version is only in the labels: the layers are the same.
	_, one, _ := open(t, filepath.Join(first, "gpuslice.tar"))
	_, two, _ := open(t, filepath.Join(build(t, repository, "v2"), "gpuslice.tar"))
	require.Equal(t, one.Layers, two.Layers)
}

func TestWhatIsInTheImage(t *testing.T) {
	dir := build(t, built(t), "v1")
	modes := map[string]fs.FileMode{}
	root := filepath.Join(dir, "root")
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		name, err := filepath.Rel(root, path)
		require.NoError(t, err)
		info, err := d.Info()
		require.NoError(t, err)
		modes["/"+strings.TrimPrefix(name, ".")] = info.Mode()
		if d.Type() != fs.ModeSymlink {
			require.Zero(t, info.Mode().Perm()&0o022, "%s can be written by others", path)
		}
		require.Zero(t, info.Mode()&(fs.ModeSetuid|fs.ModeSetgid), path)
		return nil
	}))
	libraries := "/lib/" + triplets[runtime.GOARCH] + "/"
	loader := map[string]string{"amd64": "/lib64/ld-linux-x86-64.so.2", "arm64": "/lib/ld-linux-aarch64.so.1"}[runtime.GOARCH]
	for _, name := range []string{
		"/usr/local/bin/gpuslice", "/usr/local/bin/gpuslice-agent", "/usr/local/bin/gpuslice-scheduler", "/usr/local/bin/gpuslice-runtime",
		"/usr/local/lib/gpuslice/libvgpu.so", "/usr/local/lib/gpuslice/libvgpu-cuda.so", "/usr/local/lib/gpuslice/libvgpu-nvml.so",
		"/usr/local/lib/gpuslice/gpuslice-probe",
		loader, libraries + "libc.so.6",
		libraries + "libm.so.6",      // only of NVIDIA's libraries
		libraries + "libresolv.so.2", // of a program
	} {
		require.Equal(t, fs.FileMode(0o755), modes[name], name)
	}
	require.Contains(t, modes, "/etc/ssl/certs/ca-certificates.crt")
	require.Contains(t, modes, "/usr/share/doc/libc6/copyright")
	require.Contains(t, modes, "/usr/share/doc/gpuslice/THIRD-PARTY-NOTICES")
	require.NotContains(t, modes, "/bin/sh")
	passwd, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	require.NoError(t, err)
	require.Contains(t, string(passwd), "gpuslice:x:"+user+":")
}

// another architecture than this machine's.
func another() string {
	return map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
}

// readdress makes an ELF file one of another architecture: e_machine is at 18.
func readdress(t *testing.T, to, from string) {
	t.Helper()
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	binary.NativeEndian.PutUint16(data[18:], uint16(machines[another()]))
	require.NoError(t, os.WriteFile(to, data, 0o755))
}

func TestAnotherArchitecture(t *testing.T) {
	repository, libraries := built(t), t.TempDir()
	build := filepath.Join(repository, "build", another())
	for dir, names := range map[string][]string{"bin": programs, "lib": limiter} {
		require.NoError(t, os.MkdirAll(filepath.Join(build, dir), 0o755))
		for _, name := range names {
			readdress(t, filepath.Join(build, dir, name), filepath.Join(repository, "build", dir, name))
		}
	}
	triplet := triplets[another()]
	for to, from := range must(closure(machines[runtime.GOARCH], options{arch: runtime.GOARCH}.libraryDirs(),
		[]string{filepath.Join(repository, "build/bin", programs[1])}, driverNeeds...)) {
		readdress(t, filepath.Join(libraries, filepath.Base(to)), from)
	}
	require.NoError(t, run([]string{"-repository", repository, "-arch", another(), "-libraries", libraries}))
	index, manifest, config := open(t, filepath.Join(build, "image/gpuslice.tar"))
	require.Equal(t, another(), index.Manifests[0].Platform.Architecture)
	require.Equal(t, another(), config.Architecture)
	require.Len(t, manifest.Layers, 2)
	root := filepath.Join(build, "image/root")
	require.FileExists(t, filepath.Join(root, "lib", triplet, "libc.so.6"))
	require.FileExists(t, filepath.Join(root, "lib", triplet, "libresolv.so.2"))
	require.NoDirExists(t, filepath.Join(root, "lib", triplets[runtime.GOARCH]))
}

func must(files map[string]string, err error) map[string]string {
	if err != nil {
		panic(err)
	}
	return files
}

func TestNames(t *testing.T) {
	for name, want := range map[string][2]string{
		"gpuslice:latest":              {"docker.io/library/gpuslice:latest", "latest"},
		"gpuslice":                     {"docker.io/library/gpuslice", "latest"},
		"someone/gpuslice:v1":          {"docker.io/someone/gpuslice:v1", "v1"},
		"registry.example/gpuslice:v1": {"registry.example/gpuslice:v1", "v1"},
		"localhost/gpuslice:v1":        {"localhost/gpuslice:v1", "v1"},
		"registry:5000/gpuslice":       {"registry:5000/gpuslice", "latest"},
	} {
		got := options{name: name}.annotations()
		require.Equal(t, want, [2]string{got["io.containerd.image.name"], got["org.opencontainers.image.ref.name"]}, name)
	}
}

// The Dockerfile and the archive are the same image.
func TestDockerfile(t *testing.T) {
	_, _, config := open(t, filepath.Join(build(t, built(t), "v1"), "gpuslice.tar"))
	text, err := os.ReadFile("Dockerfile")
	require.NoError(t, err)
	lines := map[string]string{}
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", " ")) {
		if word, rest, ok := strings.Cut(strings.TrimSpace(line), " "); ok && word != "#" {
			require.NotContains(t, lines, word, "duplicate")
			lines[word] = strings.TrimSpace(rest)
		}
	}
	require.ElementsMatch(t, []string{"FROM", "ARG", "LABEL", "COPY", "ENV", "WORKDIR", "USER", "ENTRYPOINT"}, slices.Collect(maps.Keys(lines)))
	require.Equal(t, "scratch", lines["FROM"])
	require.Equal(t, "root/ /", lines["COPY"])
	require.Equal(t, config.Config.User, lines["USER"])
	require.Equal(t, config.Config.WorkingDir, lines["WORKDIR"])
	require.Equal(t, config.Config.Env, []string{lines["ENV"]})
	require.Equal(t, config.Config.Entrypoint, parse[[]string](t, []byte(lines["ENTRYPOINT"])))
	labels := map[string]string{}
	for _, m := range regexp.MustCompile(`(\S+)="([^"]*)"`).FindAllStringSubmatch(lines["LABEL"], -1) {
		labels[m[1]] = strings.ReplaceAll(m[2], "${VERSION}", "v1")
	}
	require.Equal(t, config.Config.Labels, labels)
}

func TestMistakes(t *testing.T) {
	require.ErrorContains(t, run([]string{"more"}), `"more"`)
	require.ErrorContains(t, run([]string{"-repository", t.TempDir()}), "run `make build` first")
	repository := built(t)
	elsewhere := options{repository: repository, arch: runtime.GOARCH, libraries: t.TempDir()}
	require.ErrorContains(t, writeRoot(t.TempDir(), filepath.Join(repository, "build"), elsewhere), "not found in")
	here := options{arch: runtime.GOARCH}.libraryDirs()
	_, err := closure(machines[runtime.GOARCH], here, []string{filepath.Join(repository, "LICENSE")})
	require.ErrorContains(t, err, "LICENSE")
	_, _, err = find(here, "/.gpuslice/libvgpu.so")
	require.ErrorContains(t, err, "linked by its path")
	require.ErrorContains(t, run([]string{"-arch", "riscv64"}), "amd64 and arm64")
	require.ErrorContains(t, run([]string{"-repository", repository, "-arch", another()}), "-libraries")
	// Programs of one architecture and a C library of another.
	mixed := filepath.Join(repository, "build", another())
	for _, dir := range []string{"bin", "lib"} {
		require.NoError(t, os.CopyFS(filepath.Join(mixed, dir), os.DirFS(filepath.Join(repository, "build", dir))))
	}
	require.ErrorContains(t, run([]string{"-repository", repository, "-arch", another(), "-libraries", "/lib"}), "the image for "+machines[another()].String())
	// A directory that can't be written leaves no archive.
	out := filepath.Join(repository, "LICENSE", "below-a-file")
	require.Error(t, run([]string{"-repository", repository, "-out", out}))
}

// A link, a directory and a file, always as root's and with the same modes.
func TestLayer(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "d/f"), []byte("x"), 0o640))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "d/x"), nil, 0o700))
	require.NoError(t, os.Symlink("d/f", filepath.Join(dir, "l")))
	var data bytes.Buffer
	require.NoError(t, writeTar(&data, dir, func(name string) bool { return true }))
	var got []string
	for r := tar.NewReader(&data); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		require.True(t, h.ModTime.Equal(epoch))
		require.Zero(t, h.Uid+h.Gid)
		got = append(got, h.FileInfo().Mode().String()+" "+h.Name+" "+h.Linkname)
	}
	require.Equal(t, []string{"drwxr-xr-x d/ ", "-rw-r--r-- d/f ", "-rwxr-xr-x d/x ", "Lrwxrwxrwx l d/f"}, got)
}
