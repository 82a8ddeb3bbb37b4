package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpuslice/gpuslice/test/harness"
)

// NextTag is the tag of the image that ImportNextImage loads.
const NextTag = "next"

// ImportNextImage makes the image of another version, and loads it: of the same sources, with another version in the
// agent and the CLI, and with a limiter that was compiled otherwise and so is another file.
func (c *Cluster) ImportNextImage(ctx context.Context) error {
	root, err := harness.Repository()
	if err != nil {
		return err
	}
	dir := filepath.Join(c.Dir, "next")
	bin, lib := filepath.Join(dir, "build/bin"), filepath.Join(dir, "build/lib")
	for _, dir := range []string{bin, lib} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// What is the same is the same file.
	for _, name := range []string{"gpuslice-runtime", "gpuslice-scheduler"} {
		if err := copyFile(filepath.Join(root, "build/bin", name), filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	for _, name := range []string{"libvgpu-cuda.so", "libvgpu-nvml.so", "gpuslice-probe"} {
		if err := copyFile(filepath.Join(root, "build/lib", name), filepath.Join(lib, name)); err != nil {
			return err
		}
	}
	for _, name := range []string{"LICENSE", "build/THIRD-PARTY-NOTICES"} {
		if err := copyFile(filepath.Join(root, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	env := []string{"GOFLAGS=-tags=nri_no_wasm,root -buildvcs=false -trimpath", "CGO_CFLAGS=-g -O2 -Wno-deprecated-declarations"}
	for _, command := range [][]string{
		{"make", "-s", "-C", filepath.Join(root, "limiter/src"), "OUT=" + filepath.Join(dir, "build"), "CFLAGS=-O1"},
		{"go", "-C", root, "build", "-trimpath", "-ldflags", "-X github.com/gpuslice/gpuslice/cmd/internal/version.version=v-next", "-o", bin + "/", "./cmd/gpuslice-agent", "./cmd/gpuslice"},
		{"go", "-C", filepath.Join(root, "install/image"), "run", ".", "-repository", dir, "-name", "gpuslice:" + NextTag, "-version", "v-next"},
	} {
		if _, err := harness.Run(ctx, env, command[0], command[1:]...); err != nil {
			return fmt.Errorf("make the next version: %w", err)
		}
	}
	return c.ImportImage(ctx, filepath.Join(dir, "build/image/gpuslice.tar"))
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}
