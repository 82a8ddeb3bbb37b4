package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/sassoftware/go-rpmutils"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// another architecture than this machine's.
var another = map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]

// built is a repository with our texts and chart, and with built files of other sources, which is quick.
func built(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o755))
	}
	write("src/go.mod", "module example.com/program\n\ngo 1.26.0\n")
	write("src/main.go", "package main\n\nimport (\n\t\"fmt\"\n\t\"os/user\"\n)\n\nfunc main() { fmt.Println(user.Current()) }\n")
	program := filepath.Join(dir, "program")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = filepath.Join(dir, "src")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	code, err := os.ReadFile(program)
	require.NoError(t, err)
	for arch, below := range map[string]string{runtime.GOARCH: "build", another: "build/" + another} {
		for _, name := range []string{"gpuslice", "gpuslice-agent", "gpuslice-runtime", "gpuslice-scheduler"} {
			write(below+"/bin/"+name, string(code))
		}
		for _, name := range []string{"libvgpu.so", "libvgpu-cuda.so", "libvgpu-nvml.so", "gpuslice-probe"} {
			write(below+"/lib/"+name, name+" for "+arch)
		}
		write(below+"/image/gpuslice.tar", string(image(t, arch)))
	}
	for _, platform := range []string{"linux-amd64", "darwin-arm64", "windows-amd64.exe"} {
		write("build/plugins/kubectl-gpuslice-"+platform, "the plugin of "+platform)
	}
	write("build/man/gpuslice.8", ".TH GPUSLICE 8\n")
	write("build/man/kubectl-gpuslice.8", "of a program that is not in the packages")
	write("build/"+noticesFile, "of others\n")
	write("CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n- next\n\n## [1.2.0] - 2026-01-02\n\n### Added\n\n- this\n\n## 1.1.0\n\n- old\n")
	for _, name := range []string{"LICENSE", "install/gpuslice-cdi.service", "install/gpuslice-cdi-driver.service", "install/runtime.example.yaml", "install/agent.example.yaml"} {
		text, err := os.ReadFile(filepath.Join("../..", name))
		require.NoError(t, err)
		write(name, string(text))
	}
	chart := filepath.Join("../..", "install/charts/gpuslice")
	require.NoError(t, filepath.WalkDir(chart, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		write("install/charts/gpuslice/"+strings.TrimPrefix(path, chart), string(text))
		return err
	}))
	return dir
}

// image is an archive as install/image writes it.
func image(t *testing.T, arch string) []byte {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(text string) v1.Descriptor {
		hash, size, err := v1.SHA256(strings.NewReader(text))
		require.NoError(t, err)
		require.NoError(t, addToTar(w, "blobs/sha256/"+hash.Hex, []byte(text), 0o644, time.Unix(0, 0)))
		return v1.Descriptor{Digest: hash, Size: size}
	}
	manifest := add(`{"config of":"` + arch + `"}`)
	manifest.MediaType, manifest.Platform = types.OCIManifestSchema1, &v1.Platform{OS: "linux", Architecture: arch}
	manifest.Annotations = map[string]string{"io.containerd.image.name": "docker.io/library/gpuslice:0.1.0"}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, Manifests: []v1.Descriptor{manifest}})
	require.NoError(t, err)
	require.NoError(t, addToTar(w, "index.json", index, 0o644, time.Unix(0, 0)))
	require.NoError(t, w.Close())
	return archive.Bytes()
}

// release makes a release of a repository, and returns the directory.
func release(t *testing.T, repository, version string, more ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "release")
	require.NoError(t, run(append([]string{"-repository", repository, "-out", dir, "-version", version, "-revision", "0123abc", "-date", "1700000000",
		"-image", "registry.example/team/gpuslice"}, more...)))
	return dir
}

// sumsOf returns the sums of all files of a directory.
func sumsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	sums := map[string]string{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		sums[e.Name()] = sumOfText(read(t, dir, e.Name()))
	}
	return sums
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	return string(text)
}

func sumOfText(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// unpack returns the files of a tar, with the first one's name.
func unpack(t *testing.T, r io.Reader) (all map[string]string, first string) {
	t.Helper()
	all = map[string]string{}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all, first
		}
		require.NoError(t, err)
		require.Zero(t, h.Uid+h.Gid)
		text, err := io.ReadAll(archive)
		require.NoError(t, err)
		if first == "" {
			first = h.Name
		}
		all[h.Name] = string(text)
	}
}

func gunzip(t *testing.T, text string) io.Reader {
	t.Helper()
	r, err := gzip.NewReader(strings.NewReader(text))
	require.NoError(t, err)
	return r
}

func TestRelease(t *testing.T) {
	repository := built(t)
	dir := release(t, repository, "v1.2.0")
	sums := sumsOf(t, dir)
	t.Run("one architecture", func(t *testing.T) {
		again := sumsOf(t, release(t, repository, "v1.2.0", "-archs", runtime.GOARCH))
		require.Greater(t, len(again), 12)
		for name, sum := range again {
			if name != "IMAGE" && name != "SHA256SUMS" && name != "provenance.intoto.json" && !strings.HasSuffix(name, "-image.tar") { // of all architectures
				require.Equal(t, sums[name], sum, name)
			}
		}
	})
	t.Run("files", func(t *testing.T) {
		want := []string{
			"IMAGE", "RELEASE-NOTES.md", "SHA256SUMS", "THIRD-PARTY-NOTICES", "gpuslice-1.2.0-image.tar", "gpuslice-1.2.0.tgz", "gpuslice.yaml", "provenance.intoto.json",
			"gpuslice_1.2.0-1_amd64.deb", "gpuslice_1.2.0-1_arm64.deb", "gpuslice-1.2.0-1.x86_64.rpm", "gpuslice-1.2.0-1.aarch64.rpm",
			"kubectl-gpuslice-1.2.0-linux-amd64.tar.gz", "kubectl-gpuslice-1.2.0-darwin-arm64.tar.gz", "kubectl-gpuslice-1.2.0-windows-amd64.zip",
		}
		for _, arch := range []string{"amd64", "arm64"} {
			want = append(want, "gpuslice-1.2.0-linux-"+arch+".tar.gz")
			for _, name := range []string{"gpuslice", "gpuslice-agent", "gpuslice-runtime", "gpuslice-scheduler"} {
				want = append(want, name+"-1.2.0-linux-"+arch+".cdx.json")
			}
		}
		for name := range sums {
			require.Contains(t, want, name)
		}
		require.Len(t, sums, len(want))
	})
	t.Run("checksums", func(t *testing.T) {
		lines := strings.Split(strings.TrimSpace(read(t, dir, "SHA256SUMS")), "\n")
		require.Len(t, lines, len(sums)-1)
		for _, line := range lines {
			sum, name, _ := strings.Cut(line, "  ")
			require.Equal(t, sums[name], sum, name)
		}
	})
	t.Run("provenance", func(t *testing.T) {
		var s statement
		require.NoError(t, json.Unmarshal([]byte(read(t, dir, "provenance.intoto.json")), &s))
		require.Equal(t, "https://in-toto.io/Statement/v1", s.Type)
		require.Len(t, s.Subject, len(sums)-2)
		for _, subject := range s.Subject {
			require.Equal(t, sums[subject.Name], subject.Digest["sha256"], subject.Name)
		}
		require.Equal(t, "0123abc", s.Predicate.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"])
	})
	t.Run("notes", func(t *testing.T) {
		require.Equal(t, "# gpuslice v1.2.0\n\n### Added\n\n- this\n", read(t, dir, "RELEASE-NOTES.md"))
	})
	t.Run("archives", func(t *testing.T) { archives(t, dir) })
	t.Run("packages", func(t *testing.T) { packages(t, dir) })
	t.Run("image", func(t *testing.T) { images(t, repository, dir) })
	t.Run("chart", func(t *testing.T) { charts(t, dir) })
	t.Run("plugin", func(t *testing.T) { plugins(t, dir, sums) })
	t.Run("SBOM", func(t *testing.T) {
		var bom struct {
			BOMFormat string `json:"bomFormat"`
			Metadata  struct {
				Component struct{ Name, Version string }
			}
		}
		require.NoError(t, json.Unmarshal([]byte(read(t, dir, "gpuslice-agent-1.2.0-linux-arm64.cdx.json")), &bom))
		require.Equal(t, "CycloneDX", bom.BOMFormat)
		require.Equal(t, "v1.2.0", bom.Metadata.Component.Version)
	})
}

// gpuslice install --from finds programs in bin and the limiter in lib/gpuslice.
func archives(t *testing.T, dir string) {
	for _, arch := range []string{"amd64", "arm64"} {
		all, _ := unpack(t, gunzip(t, read(t, dir, "gpuslice-1.2.0-linux-"+arch+".tar.gz")))
		below := "gpuslice-1.2.0-linux-" + arch + "/"
		require.Equal(t, "libvgpu.so for "+arch, all[below+"lib/gpuslice/libvgpu.so"])
		for _, name := range []string{"bin/gpuslice", "bin/gpuslice-scheduler", "share/doc/gpuslice/copyright", "share/doc/gpuslice/" + noticesFile, "share/man/man8/gpuslice.8"} {
			require.NotEmpty(t, all[below+name], name)
		}
		require.NotContains(t, all, below+"share/man/man8/kubectl-gpuslice.8")
	}
}

func packages(t *testing.T, dir string) {
	deb := filepath.Join(dir, "gpuslice_1.2.0-1_"+runtime.GOARCH+".deb")
	f, err := os.Open(filepath.Join(dir, map[string]string{"amd64": "gpuslice-1.2.0-1.x86_64.rpm", "arm64": "gpuslice-1.2.0-1.aarch64.rpm"}[runtime.GOARCH]))
	require.NoError(t, err)
	defer f.Close()
	r, err := rpmutils.ReadRpm(f)
	require.NoError(t, err)
	name, err := r.Header.GetNEVRA()
	require.NoError(t, err)
	require.Equal(t, "gpuslice 1.2.0 1", name.Name+" "+name.Version+" "+name.Release)
	requires, err := r.Header.GetStrings(rpmutils.REQUIRENAME)
	require.NoError(t, err)
	require.Regexp(t, `libc\.so\.6\(GLIBC_2\.\d+\)\(64bit\)`, strings.Join(requires, " "))
	inRPM := []string{}
	all, err := r.Header.GetFiles()
	require.NoError(t, err)
	for _, file := range all {
		require.Equal(t, "root", file.UserName(), file.Name())
		require.Zero(t, file.Mode()&0o022, file.Name())
		inRPM = append(inRPM, file.Name())
	}
	want := []string{
		"/usr/bin/gpuslice", "/usr/bin/gpuslice-agent", "/usr/bin/gpuslice-runtime",
		"/usr/lib/gpuslice/libvgpu.so", "/usr/lib/gpuslice/libvgpu-cuda.so", "/usr/lib/gpuslice/libvgpu-nvml.so", "/usr/lib/gpuslice/gpuslice-probe",
		"/usr/lib/systemd/system/gpuslice-cdi.service", "/usr/share/doc/gpuslice/copyright", "/usr/share/doc/gpuslice/" + noticesFile,
	}
	for _, name := range want {
		require.Contains(t, inRPM, name)
	}
	require.NotContains(t, inRPM, "/usr/bin/gpuslice-scheduler")

	fields, err := exec.Command("dpkg-deb", "--field", deb, "Package", "Version", "Architecture", "Depends").Output()
	require.NoError(t, err)
	require.Regexp(t, `^Package: gpuslice\nVersion: 1\.2\.0-1\nArchitecture: `+runtime.GOARCH+`\nDepends: libc6 \(>= 2\.\d+\)\n$`, string(fields))
	root := t.TempDir()
	out, err := exec.Command("dpkg-deb", "--extract", deb, root).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, name := range want {
		require.FileExists(t, filepath.Join(root, name))
	}
	require.NoFileExists(t, filepath.Join(root, "usr/bin/gpuslice-scheduler"))
	out, err = exec.Command(filepath.Join(root, "usr/bin/gpuslice")).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// The index has an image for each architecture, and is the only entry of the archive's own.
func images(t *testing.T, repository, dir string) {
	archives := []string{filepath.Join(repository, "build/image/gpuslice.tar"), filepath.Join(repository, "build", another, "image/gpuslice.tar")}
	if runtime.GOARCH != "amd64" {
		slices.Reverse(archives)
	}
	again := filepath.Join(t.TempDir(), "again.tar")
	digest, err := joinImages(again, "registry.example/team/gpuslice:1.2.0", archives)
	require.NoError(t, err)
	require.Contains(t, read(t, dir, "IMAGE"), "@"+digest)
	require.Equal(t, read(t, dir, "gpuslice-1.2.0-image.tar"), read(t, filepath.Dir(again), "again.tar"))
	all, _ := unpack(t, strings.NewReader(read(t, dir, "gpuslice-1.2.0-image.tar")))
	var outer, inner v1.IndexManifest
	require.NoError(t, json.Unmarshal([]byte(all["index.json"]), &outer))
	require.Len(t, outer.Manifests, 1)
	entry := outer.Manifests[0]
	require.Equal(t, map[string]string{"io.containerd.image.name": "registry.example/team/gpuslice:1.2.0", "org.opencontainers.image.ref.name": "1.2.0"}, entry.Annotations)
	require.Equal(t, "registry.example/team/gpuslice:1.2.0@"+entry.Digest.String()+"\n", read(t, dir, "IMAGE"))
	require.Equal(t, entry.Digest.Hex, sumOfText(all["blobs/sha256/"+entry.Digest.Hex]))
	require.NoError(t, json.Unmarshal([]byte(all["blobs/sha256/"+entry.Digest.Hex]), &inner))
	var platforms []string
	for _, m := range inner.Manifests {
		platforms = append(platforms, m.Platform.Architecture)
		require.Empty(t, m.Annotations)
		require.Contains(t, all["blobs/sha256/"+m.Digest.Hex], m.Platform.Architecture)
	}
	require.Equal(t, []string{"amd64", "arm64"}, platforms)
}

func charts(t *testing.T, dir string) {
	all, first := unpack(t, gunzip(t, read(t, dir, "gpuslice-1.2.0.tgz")))
	require.Equal(t, "gpuslice/Chart.yaml", first)
	var chart struct{ Version, AppVersion string }
	require.NoError(t, yaml.Unmarshal([]byte(all["gpuslice/Chart.yaml"]), &chart))
	require.Equal(t, "1.2.0 1.2.0", chart.Version+" "+chart.AppVersion)
	var values struct {
		Image struct{ Repository, Tag string }
	}
	require.NoError(t, yaml.Unmarshal([]byte(all["gpuslice/values.yaml"]), &values))
	require.Equal(t, "registry.example/team/gpuslice", values.Image.Repository)
	require.Empty(t, values.Image.Tag)
	require.NotEmpty(t, all["gpuslice/values.schema.json"])
	// helm renders it.
	tools, err := exec.Command("../../test/setup.sh", "--where-helm").Output()
	require.NoError(t, err)
	helm := exec.Command(filepath.Join(strings.TrimSpace(string(tools)), "helm"), "template", "gpuslice", filepath.Join(dir, "gpuslice-1.2.0.tgz"), "--kube-version=1.36")
	helm.Env = append(os.Environ(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	out, err := helm.CombinedOutput()
	require.NoError(t, err, "%s: make test builds helm before", out)
	require.Contains(t, string(out), "image: registry.example/team/gpuslice:1.2.0\n")
	require.Contains(t, string(out), "helm.sh/chart: gpuslice-1.2.0\n")
}

func plugins(t *testing.T, dir string, sums map[string]string) {
	var manifest struct {
		Spec struct {
			Version   string
			Platforms []platform
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, dir, "gpuslice.yaml")), &manifest))
	require.Equal(t, "v1.2.0", manifest.Spec.Version)
	require.Len(t, manifest.Spec.Platforms, 3)
	for _, p := range manifest.Spec.Platforms {
		goos, arch := p.Selector.MatchLabels["os"], p.Selector.MatchLabels["arch"]
		name := strings.TrimPrefix(p.URI, "https://github.com/gpuslice/gpuslice/releases/download/v1.2.0/")
		require.Equal(t, sums[name], p.SHA256, name)
		var text string
		if goos == "windows" {
			archive := read(t, dir, name)
			r, err := zip.NewReader(strings.NewReader(archive), int64(len(archive)))
			require.NoError(t, err)
			file, err := r.Open(p.Bin)
			require.NoError(t, err)
			data, err := io.ReadAll(file)
			require.NoError(t, err)
			text = string(data)
		} else {
			all, _ := unpack(t, gunzip(t, read(t, dir, name)))
			require.NotEmpty(t, all["LICENSE"])
			text = all[p.Bin]
		}
		require.Equal(t, "the plugin of "+goos+"-"+arch+strings.TrimPrefix(p.Bin, "kubectl-gpuslice"), text)
	}
}

func TestNotes(t *testing.T) {
	repository := t.TempDir()
	write := func(text string) {
		require.NoError(t, os.WriteFile(filepath.Join(repository, "CHANGELOG.md"), []byte(text), 0o600))
	}
	for _, c := range []struct{ changelog, version, want string }{
		{"# C\n\n## Unreleased\n\n- next\n", "v1.0.0-rc.1", "- next"},
		{"# C\n\n## 1.0.0\n\n- one\n\n## 0.9.0\n- old\n", "v1.0.0-rc.1", "- one"},
		{"# C\n\n## 1.0.0\n\n- one\n\n### Fixed\n\n- two\n", "v1.0.0", "- one\n\n### Fixed\n\n- two"},
		{"# C\n\n## [1.0.0] - 2026-01-01\n- one\n", "v1.0.0", "- one"},
		{"# C\n\n## Unreleased\n\n- next\n\n## 11.0.0\n- other\n", "v1.0.0", ""},
		{"# C\n\n## 1.0.0\n\n## 0.9.0\n- old\n", "v1.0.0", ""},
	} {
		write(c.changelog)
		notes, err := options{repository: repository, version: c.version}.notes()
		if c.want == "" {
			require.ErrorContains(t, err, `no section "1.0.0"`, c.changelog)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, "# gpuslice "+c.version+"\n\n"+c.want+"\n", notes)
	}
}

// The tag of a version with build metadata is one that a registry accepts.
func TestTag(t *testing.T) {
	o := options{version: "v0.1.0-dev+g0123abc"}
	require.Equal(t, "0.1.0-dev+g0123abc", o.number())
	require.Equal(t, "0.1.0-dev-g0123abc", o.tag())
}

func TestMistakes(t *testing.T) {
	repository := built(t)
	args := func(more ...string) []string {
		return append([]string{"-repository", repository, "-out", filepath.Join(t.TempDir(), "out"), "-version", "v1.2.0"}, more...)
	}
	require.ErrorContains(t, run(args("more")), `"more"`)
	for _, version := range []string{"", "1.2.0", "v1.2", "2776417"} {
		require.ErrorContains(t, run(args("-version", version)), "is there a tag?")
	}
	require.ErrorContains(t, run(args("-version", "v1.3.0")), `no section "1.3.0"`)
	for _, c := range []struct{ lacks, says string }{
		{"build/" + another + "/image/gpuslice.tar", "make image"},
		{"build/man/gpuslice.8", "make man"},
		{"build/bin/gpuslice", "make build"},
	} {
		path := filepath.Join(repository, c.lacks)
		require.NoError(t, os.Rename(path, path+".away"))
		require.ErrorContains(t, run(args()), c.says, c.lacks)
		require.NoError(t, os.Rename(path+".away", path))
	}
	require.NoError(t, os.RemoveAll(filepath.Join(repository, "build/plugins")))
	require.ErrorContains(t, run(args()), "make plugins")
	// Two images for the same platform, and one that is none.
	one := filepath.Join(repository, "build/image/gpuslice.tar")
	_, err := joinImages(filepath.Join(t.TempDir(), "both.tar"), "gpuslice:1", []string{one, one})
	require.ErrorContains(t, err, "second image")
	require.NoError(t, os.WriteFile(one, nil, 0o600))
	_, err = joinImages(filepath.Join(t.TempDir(), "none.tar"), "gpuslice:1", []string{one})
	require.ErrorContains(t, err, "want an index")
}

func TestGLIBC(t *testing.T) {
	versions := []string{"2.34", "2.4", "2.17", "2.2.5", "2.3", ""}
	slices.SortFunc(versions, func(a, b string) int {
		if older(a, b) {
			return -1
		}
		return 1
	})
	require.Equal(t, []string{"", "2.2.5", "2.3", "2.4", "2.17", "2.34"}, versions)
}
