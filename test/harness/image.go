package harness

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
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

// descriptor is an OCI content descriptor: image-spec v1.1, descriptor.md.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// WriteImages writes an OCI image archive with all the test images to path.
func WriteImages(path string) error {
	layer, err := rootLayer()
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
	for _, image := range []struct {
		name string
		env  []string
		cmd  []string
	}{
		{PauseImage, nil, []string{"/bin/sleep", "2147483647"}},
		{WorkloadImage, nil, []string{"/bin/sleep", "2147483647"}},
		{GreedyImage, []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"}, []string{"/bin/sleep", "2147483647"}},
		{TwiceImage, []string{"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=all"}, []string{"/bin/sleep", "2147483647"}},
	} {
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
		d.Annotations = map[string]string{"io.containerd.image.name": image.name}
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

// rootLayer is the one layer of the images: a root file system small enough to read.
func rootLayer() ([]byte, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, dir := range []string{"bin", "dev", "etc", "lib", "lib64", "lib/x86_64-linux-gnu", "opt", "opt/workloads", "proc", "run", "sys", "tmp", "usr", "usr/lib", "usr/lib/x86_64-linux-gnu", "usr/local", "var"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	for _, applet := range busyboxApplets {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox", Mode: 0o777}); err != nil {
			return nil, err
		}
	}
	files := map[string]string{
		"bin/busybox":                          "/bin/busybox",
		"lib64/ld-linux-x86-64.so.2":           "/lib64/ld-linux-x86-64.so.2",
		"lib/x86_64-linux-gnu/libc.so.6":       "/lib/x86_64-linux-gnu/libc.so.6",
		"lib/x86_64-linux-gnu/libm.so.6":       "/lib/x86_64-linux-gnu/libm.so.6",
		"lib/x86_64-linux-gnu/libdl.so.2":      "/lib/x86_64-linux-gnu/libdl.so.2",
		"lib/x86_64-linux-gnu/libpthread.so.0": "/lib/x86_64-linux-gnu/libpthread.so.0",
		// A dynamic program of the distribution: it shows that the preload reaches what is not ours.
		"bin/dynamic-env": "/usr/bin/env",
	}
	workloads, err := Artefact("workloads")
	if err != nil {
		return nil, err
	}
	programs, err := os.ReadDir(workloads)
	if err != nil {
		return nil, err
	}
	for _, p := range programs {
		if p.Type().IsRegular() && !strings.Contains(p.Name(), ".") {
			files["opt/workloads/"+p.Name()] = filepath.Join(workloads, p.Name())
		}
	}
	for name, source := range files {
		data, err := os.ReadFile(source)
		if err != nil {
			return nil, err
		}
		if err := writeFile(w, name, data, 0o755); err != nil {
			return nil, err
		}
	}
	if err := writeFile(w, "etc/passwd", []byte("root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/:/bin/sh\n"), 0o644); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return layer.Bytes(), nil
}

func writeFile(w *tar.Writer, name string, data []byte, mode int64) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: mode}); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}
