package main

import (
	"fmt"
	"os"
	"path/filepath"
)

const (
	binDir     = "usr/local/bin"
	limiterDir = "usr/local/lib/gpuslice"
	// user runs the programs, except the agent, which needs root.
	user = "65532:65532"
	// authorities is Debian's bundle of certificate authorities.
	authorities = "/etc/ssl/certs/ca-certificates.crt"
)

// The files of build/bin and build/lib.
var (
	programs = []string{"gpuslice", "gpuslice-agent", "gpuslice-runtime", "gpuslice-scheduler"}
	limiter  = []string{"libvgpu.so", "libvgpu-cuda.so", "libvgpu-nvml.so"}
)

var texts = map[string]string{
	"etc/passwd":        "root:x:0:0:root:/:/usr/sbin/nologin\ngpuslice:x:65532:65532:gpuslice:/:/usr/sbin/nologin\n",
	"etc/group":         "root:x:0:\ngpuslice:x:65532:\n",
	"etc/nsswitch.conf": "hosts: files dns\n",
	// NVIDIA's runtime runs the host's ldconfig in the container, which reads this.
	"etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",
}

// dirs are mount points, and directories in which other programs create files.
var dirs = []string{"dev", "etc/ld.so.conf.d", "proc", "run", "sys", "tmp", "usr/lib64", "var/lib"}

// writeRoot writes the image's root file system.
func writeRoot(root, repository string, libraryDirs []string) error {
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	build := filepath.Join(repository, "build")
	var binaries []string
	for _, name := range programs {
		binaries = append(binaries, filepath.Join(build, "bin", name))
		if err := copyFile(filepath.Join(root, binDir, name), filepath.Join(build, "bin", name), 0o755); err != nil {
			return fmt.Errorf("%w: run `make build` first", err)
		}
	}
	for _, name := range limiter {
		if err := copyFile(filepath.Join(root, limiterDir, name), filepath.Join(build, "lib", name), 0o755); err != nil {
			return fmt.Errorf("%w: run `make build` first", err)
		}
	}
	libraries, err := closure(libraryDirs, binaries, driverNeeds...)
	if err != nil {
		return err
	}
	for _, file := range libraries {
		if err := copyFile(filepath.Join(root, file), file, 0o755); err != nil {
			return err
		}
	}
	if err := copyFile(filepath.Join(root, authorities), authorities, 0o644); err != nil {
		return fmt.Errorf("%w: install Debian's package ca-certificates", err)
	}
	if err := copyFile(filepath.Join(root, "usr/share/doc/gpuslice/LICENSE"), filepath.Join(repository, "LICENSE"), 0o644); err != nil {
		return err
	}
	// The licences of the C library and of the bundle have to be distributed with them.
	for _, name := range []string{"libc6", "ca-certificates"} {
		file := filepath.Join("/usr/share/doc", name, "copyright")
		if err := copyFile(filepath.Join(root, file), file, 0o644); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	for file, text := range texts {
		if err := writeFile(filepath.Join(root, file), []byte(text), 0o644); err != nil {
			return err
		}
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	return os.Symlink("../run", filepath.Join(root, "var/run"))
}

func copyFile(to, from string, mode os.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return writeFile(to, data, mode)
}

func writeFile(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, mode)
}
