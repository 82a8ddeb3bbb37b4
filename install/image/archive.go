package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// epoch is the time of everything in the image.
var epoch = time.Unix(0, 0).UTC()

// writeArchive writes the image as an OCI archive: image-spec v1.1, image-layout.md, in a tar.
func (r root) writeArchive(path string, o options) (size int64, err error) {
	image, err := r.image(o)
	if err != nil {
		return 0, err
	}
	work, err := os.MkdirTemp(filepath.Dir(path), ".oci-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(work)
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add: image,
		Descriptor: v1.Descriptor{
			Platform:    &v1.Platform{OS: "linux", Architecture: runtime.GOARCH},
			Annotations: o.annotations(),
		},
	})
	if _, err := layout.Write(work, index); err != nil {
		return 0, err
	}
	return tarDir(path, work)
}

// annotations name the image for who imports it: containerd reads its own, others the OCI's, which is
// only the tag.
func (o options) annotations() map[string]string {
	tag := "latest"
	if i := strings.LastIndexByte(o.name, ':'); i > strings.LastIndexByte(o.name, '/') {
		tag = o.name[i+1:]
	}
	return map[string]string{"io.containerd.image.name": o.qualified(), "org.opencontainers.image.ref.name": tag}
}

// qualified is the image's name as containerd's CRI looks for it: a name without a registry is of
// docker.io/library there.
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

// labels are those of the OCI's image-spec, annotations.md.
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

// image has two layers: who builds again pulls and pushes again only the programs.
func (r root) image(o options) (v1.Image, error) {
	isOurs := func(e entry) bool { return strings.HasPrefix(e.path, "usr/local/") }
	base := slices.DeleteFunc(slices.Clone(r), isOurs)
	ours := slices.DeleteFunc(slices.Clone(r), func(e entry) bool { return !isOurs(e) })
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, part := range []struct {
		entries root
		what    string
	}{{base, "the C library, certificate authorities and users"}, {ours, "gpuslice"}} {
		layer, err := part.entries.layer()
		if err != nil {
			return nil, err
		}
		image, err = mutate.Append(image, mutate.Addendum{
			Layer: layer, History: v1.History{Created: v1.Time{Time: epoch}, CreatedBy: "install/image", Comment: part.what},
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
	config.Created, config.OS, config.Architecture = v1.Time{Time: epoch}, "linux", runtime.GOARCH
	config.Config = v1.Config{
		User: user, WorkingDir: "/", Entrypoint: []string{"/" + binDir + "/gpuslice"},
		Env: []string{"PATH=/" + binDir}, Labels: o.labels(),
	}
	return mutate.ConfigFile(image, config)
}

// layer is a compressed layer. It is made twice, for its two digests, and each time the same.
func (r root) layer() (v1.Layer, error) {
	var data bytes.Buffer
	if err := r.writeTar(&data); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data.Bytes())), nil }
	// The fast level: the layers are a fifth larger, and made in a quarter of the time.
	return tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.BestSpeed), tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

func (r root) writeTar(to io.Writer) error {
	w := tar.NewWriter(to)
	for _, e := range r {
		header := &tar.Header{Name: e.path, Mode: int64(e.mode.Perm()), ModTime: epoch, Format: tar.FormatUSTAR}
		var data []byte
		var err error
		switch e.mode.Type() {
		case fs.ModeDir:
			header.Typeflag, header.Name = tar.TypeDir, e.path+"/"
		case fs.ModeSymlink:
			header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
		default:
			if data, err = e.content(); err != nil {
				return err
			}
			header.Typeflag, header.Size = tar.TypeReg, int64(len(data))
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	return w.Close()
}

// tarDir packs an OCI layout, always the same way.
func tarDir(path, dir string) (size int64, err error) {
	partial := path + ".partial"
	out, err := os.Create(partial)
	if err != nil {
		return 0, err
	}
	defer os.Remove(partial)
	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		size += int64(len(data))
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: epoch, Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err == nil {
		err = w.Close()
	}
	if closed := out.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return 0, err
	}
	return size, os.Rename(partial, path)
}
