package harness

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
)

// The images that WriteImages makes. Nothing is pulled: they hold Debian's static
// busybox, this machine's C library, and the CUDA workloads.
const (
	PauseImage    = "gpuslice.test/pause:1"
	WorkloadImage = "gpuslice.test/workload:1"
	// GreedyImage is WorkloadImage with NVIDIA_VISIBLE_DEVICES=all, as CUDA's own images have it.
	GreedyImage = "gpuslice.test/greedy:1"
	// TwiceImage names NVIDIA_VISIBLE_DEVICES twice, which NRI's editing does not expect.
	TwiceImage = "gpuslice.test/twice:1"
)

// WorkloadDir is where the CUDA workloads are inside the images.
const WorkloadDir = "/opt/workloads"

var busyboxApplets = []string{"sh", "sleep", "cat", "ls", "env", "true", "grep", "stat", "echo", "test", "mount", "id", "wc"}

// refName is the annotation with an image's name.
const refName = "org.opencontainers.image.ref.name"

// descriptor is an OCI content descriptor: image-spec v1.1, descriptor.md.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// image is one image of an archive.
type image struct {
	name string
	env  []string
	cmd  []string
}

// WriteImages writes an OCI image archive with all the test images to path.
func WriteImages(path string) error {
	root, err := GlibcRoot()
	if err != nil {
		return fmt.Errorf("make the test images: %w", err)
	}
	return writeArchive(path, root, []image{
		{PauseImage, nil, []string{"/bin/sleep", "2147483647"}},
		{WorkloadImage, nil, []string{"/bin/sleep", "2147483647"}},
		{GreedyImage, []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"}, []string{"/bin/sleep", "2147483647"}},
		{TwiceImage, []string{"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=all"}, []string{"/bin/sleep", "2147483647"}},
	})
}

// WriteImage writes an OCI image archive with one image of that root to path.
func WriteImage(path, name string, root Root) error {
	return writeArchive(path, root, []image{{name, nil, []string{"/bin/sleep", "2147483647"}}})
}

func writeArchive(path string, root Root, images []image) error {
	layer, err := root.layer()
	if err != nil {
		return fmt.Errorf("make the test image's layer: %w", err)
	}

	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	blob := func(mediaType string, data []byte) (descriptor, error) {
		sum := fmt.Sprintf("%x", sha256.Sum256(data))
		err := writeFile(w, "blobs/sha256/"+sum, data, 0o644)
		return descriptor{MediaType: mediaType, Digest: "sha256:" + sum, Size: len(data)}, err
	}
	layerDescriptor, err := blob("application/vnd.oci.image.layer.v1.tar", layer)
	if err != nil {
		return err
	}

	var manifests []descriptor
	for _, image := range images {
		config, err := json.Marshal(map[string]any{
			"architecture": runtime.GOARCH, "os": "linux",
			"config": map[string]any{"Env": append([]string{"PATH=/bin:" + WorkloadDir}, image.env...), "Cmd": image.cmd},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layerDescriptor.Digest}},
		})
		if err != nil {
			return err
		}
		configDescriptor, err := blob("application/vnd.oci.image.config.v1+json", config)
		if err != nil {
			return err
		}
		manifest, err := json.Marshal(map[string]any{
			"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
			"config": configDescriptor, "layers": []descriptor{layerDescriptor},
		})
		if err != nil {
			return err
		}
		d, err := blob("application/vnd.oci.image.manifest.v1+json", manifest)
		if err != nil {
			return err
		}
		d.Annotations = map[string]string{"io.containerd.image.name": image.name, refName: image.name}
		manifests = append(manifests, d)
	}

	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": manifests})
	if err != nil {
		return err
	}
	if err := writeFile(w, "index.json", index, 0o644); err != nil {
		return err
	}
	if err := writeFile(w, "oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, archive.Bytes(), 0o600)
}

// imagesOf are the names of the images of an archive.
func imagesOf(path string) (names []string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	for archive := tar.NewReader(file); ; {
		header, err := archive.Next()
		if err != nil {
			return nil, fmt.Errorf("%s has no index.json: %w", path, err)
		}
		if header.Name != "index.json" {
			continue
		}
		var index struct{ Manifests []descriptor }
		if err := json.NewDecoder(archive).Decode(&index); err != nil {
			return nil, fmt.Errorf("%s: index.json: %w", path, err)
		}
		for _, manifest := range index.Manifests {
			names = append(names, manifest.Annotations[refName])
		}
		return names, nil
	}
}

func writeFile(w *tar.Writer, name string, data []byte, mode int64) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: mode}); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}
