package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// epoch is the time of all files: the same build gives the same bytes.
var epoch = time.Unix(0, 0).UTC()

// writeArchive writes the image as an OCI archive: an image layout (image-spec v1.1) in a tar.
func writeArchive(path, root string, o options) (size int64, err error) {
	image, err := newImage(root, o)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".oci-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add: image,
		Descriptor: v1.Descriptor{
			Platform:    &v1.Platform{OS: "linux", Architecture: o.arch},
			Annotations: o.annotations(),
		},
	})
	if _, err := layout.Write(dir, index); err != nil {
		return 0, err
	}
	var archive bytes.Buffer
	if err := writeTar(&archive, dir, func(string) bool { return true }); err != nil {
		return 0, err
	}
	if err := os.WriteFile(path+".partial", archive.Bytes(), 0o644); err != nil {
		return 0, err
	}
	return int64(archive.Len()), os.Rename(path+".partial", path)
}

// annotations have the image's name for containerd, and the tag for other programs.
func (o options) annotations() map[string]string {
	tag := "latest"
	if i := strings.LastIndexByte(o.name, ':'); i > strings.LastIndexByte(o.name, '/') {
		tag = o.name[i+1:]
	}
	return map[string]string{"io.containerd.image.name": o.qualified(), "org.opencontainers.image.ref.name": tag}
}

// qualified adds the default registry.
func (o options) qualified() string {
	first, _, more := strings.Cut(o.name, "/")
	switch {
	case !more:
		return "docker.io/library/" + o.name
	case strings.ContainsAny(first, ".:") || first == "localhost":
		return o.name
	default:
		return "docker.io/" + o.name
	}
}

// labels are defined in the OCI image-spec, annotations.md.
func (o options) labels() map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":       "gpuslice",
		"org.opencontainers.image.description": "Slices NVIDIA GPUs between containers: agent, scheduler, webhook, CLI and limiter",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     o.version,
	}
	if o.revision != "" {
		labels["org.opencontainers.image.revision"] = o.revision
	}
	return labels
}

// newImage has two layers, so that a new build changes only the one with the programs.
func newImage(root string, o options) (v1.Image, error) {
	isOurs := func(name string) bool { return strings.HasPrefix(name, "usr/local/") }
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, part := range []struct {
		comment string
		keep    func(name string) bool
	}{
		{"the C library, certificate authorities and users", func(name string) bool { return !isOurs(name) }},
		{"gpuslice", isOurs},
	} {
		var data bytes.Buffer
		if err := writeTar(&data, root, part.keep); err != nil {
			return nil, err
		}
		open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data.Bytes())), nil }
		layer, err := tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.BestSpeed),
			tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
		if err != nil {
			return nil, err
		}
		image, err = mutate.Append(image, mutate.Addendum{
			Layer: layer, History: v1.History{Created: v1.Time{Time: epoch}, CreatedBy: "install/image", Comment: part.comment},
		})
		if err != nil {
			return nil, err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Created, config.OS, config.Architecture = v1.Time{Time: epoch}, "linux", o.arch
	config.Config = v1.Config{
		User: user, WorkingDir: "/", Entrypoint: []string{"/" + binDir + "/gpuslice"},
		Env: []string{"PATH=/" + binDir}, Labels: o.labels(),
	}
	return mutate.ConfigFile(image, config)
}

// writeTar packs the files of a directory, as root's and with the modes 0755 or 0644.
func writeTar(to io.Writer, dir string, keep func(name string) bool) error {
	w := tar.NewWriter(to)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(strings.TrimPrefix(path, dir), "/")
		if err != nil || name == "" || !keep(name) {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, ModTime: epoch, Format: tar.FormatUSTAR}
		if info.Mode()&0o100 != 0 {
			h.Mode = 0o755
		}
		var data []byte
		switch d.Type() {
		case fs.ModeDir:
			h.Typeflag, h.Name = tar.TypeDir, name+"/"
		case fs.ModeSymlink:
			h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
			h.Linkname, err = os.Readlink(path)
		default:
			data, err = os.ReadFile(path)
			h.Size = int64(len(data))
		}
		if err != nil {
			return err
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	return w.Close()
}
