// Command recordspecs writes the configs that this machine's engines make for a container,
// as the runtime wrapper finds them, into oci/runtime/testdata/specs. As root, in the
// repository's directory, after `make setup native build`:
//
//	go build -o build/recordspecs ./test/docker/recordspecs
//	env -i HOME="$HOME" PATH="$PATH" build/recordspecs    # docker writes its environment into hooks
//	go test ./oci/runtime -run TestGolden -update
//
// With a program and a name it records only that dockerd, of version 24 or later, as build/recordspecs /tmp/dockerd docker-24.
// docker's modules build with their vendor.mod and vendor.sum as go.mod and go.sum.
//
// Ids and the directories of the test's own daemons are replaced; nothing else is.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/test/harness"
)

const (
	// id stands in the place of containers' ids (oci/runtime's tests know it).
	id    = "8f1d6d3c0a5e4b7f9c2e1d0b3a4f5e6d7c8b9a0f1e2d3c4b5a69788796a5b4c3"
	short = 12
	into  = "oci/runtime/testdata/specs"
)

// program runs until its container is removed; its text is not to be spelled otherwise.
var program = []string{"sh", "-c", "sleep 600 && echo '<train & eval>'"}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := record(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "recordspecs:", err)
		os.Exit(1)
	}
}

func record(ctx context.Context, args []string) (err error) {
	if len(args) != 0 && len(args) != 2 {
		return errors.New("usage: recordspecs [DOCKERD NAME]")
	}
	m, err := harness.NewMachine(ctx, "H200")
	if m != nil {
		defer func() { err = errors.Join(err, m.Close()) }()
	}
	if err == nil {
		err = m.WriteRuntimeConfig("")
	}
	if err != nil {
		return err
	}
	if len(args) == 2 {
		return newerDocker(ctx, m, args[1], harness.DockerdOptions{Newer: true, Program: args[0]})
	}
	return errors.Join(docker(ctx, m), newerDocker(ctx, m, "docker-28", harness.DockerdOptions{Newer: true}),
		newerDocker(ctx, m, "docker-28-store", harness.DockerdOptions{Newer: true, ContainerdStore: true}), podman(ctx, m), containerd(ctx, m))
}

// newerDocker records docker 24 or later, with images in its own store or in containerd's: as docker run, with --gpus, and as compose has
// it for a service with a reservation of devices.
func newerDocker(ctx context.Context, m *harness.Machine, name string, options harness.DockerdOptions) (err error) {
	if err := m.WriteNvidiaConfig(harness.NvidiaConfig{}); err != nil {
		return err
	}
	d, err := harness.NewDockerd(ctx, m, options)
	if d != nil {
		defer func() { err = errors.Join(err, d.Close(ctx)) }()
	}
	if err == nil {
		err = errors.Join(d.InstallNvidiaHook(), d.Stop(), d.Start(ctx)) // docker looks for the hook when it starts
	}
	if err != nil {
		return err
	}
	reservation := []map[string]any{{"Driver": "nvidia", "Count": 1, "Capabilities": [][]string{{"gpu"}}}}
	for suffix, request := range map[string][]any{
		"": {nil}, "-gpus": {[]map[string]any{{"Driver": "", "Count": -1, "Capabilities": [][]string{{"gpu"}}}}}, "-compose": {reservation},
	} {
		if options.ContainerdStore && suffix != "" {
			continue
		}
		var answer struct{ ID string }
		err := d.Request(ctx, "POST", "/v1.43/containers/create", map[string]any{
			"Image": harness.WorkloadImage, "Cmd": program, "Env": []string{"GPUSLICE_MEMORY=8GiB", "GPUSLICE_CORES=30"},
			"HostConfig": map[string]any{"NetworkMode": "none", "Runtime": "gpuslice", "DeviceRequests": request[0]},
		}, &answer)
		if err == nil {
			err = d.Request(ctx, "POST", "/v1.43/containers/"+answer.ID+"/start", nil, nil)
		}
		if err == nil {
			err = keep(m.Dir, answer.ID, name+suffix)
		}
		if err != nil {
			return err
		}
	}
	return d.RemoveAll(ctx)
}

func docker(ctx context.Context, m *harness.Machine) (err error) {
	d, err := harness.NewDockerd(ctx, m, harness.DockerdOptions{})
	if d != nil {
		defer func() { err = errors.Join(err, d.Close(ctx)) }()
	}
	if err != nil {
		return err
	}
	image := []string{"-e", "NVIDIA_VISIBLE_DEVICES=all", "-e", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"}
	for name, request := range map[string][]string{
		"docker-20": {"-e", "GPUSLICE_MEMORY=8GiB", "-e", "GPUSLICE_CORES=30"}, "docker-20-nothing": nil,
	} {
		args := append([]string{"run", "--detach", "--network", "none", "--runtime", "gpuslice"}, append(image, request...)...)
		out, err := d.Docker(ctx, append(append(args, harness.WorkloadImage), program...)...)
		if err == nil {
			err = keep(m.Dir, strings.TrimSpace(out), name)
		}
		if err != nil {
			return err
		}
	}
	return d.RemoveAll(ctx)
}

func podman(ctx context.Context, m *harness.Machine) (err error) {
	p, err := harness.NewPodman(m)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(ctx)) }()
	wrapper, err := harness.Wrapper()
	if err != nil {
		return err
	}
	out, err := p.Run(ctx, wrapper, []string{"--detach", "-e", "GPUSLICE_MEMORY=4GiB", "-e", "NVIDIA_VISIBLE_DEVICES=all"}, program...)
	if err != nil {
		return err
	}
	container := strings.TrimSpace(out)
	err = keep(m.Dir, container, "podman-4")
	_, removeErr := p.Command(ctx, wrapper, "rm", "--force", "--time", "0", container)
	return errors.Join(err, removeErr)
}

func containerd(ctx context.Context, m *harness.Machine) (err error) {
	wrapper, err := harness.Wrapper()
	if err != nil {
		return err
	}
	c, err := harness.NewContainerd(ctx, filepath.Join(m.Dir, "c"), harness.ContainerdOptions{
		DisableNRI: true, Runtimes: map[string]string{"gpuslice": wrapper}, Env: m.RuntimeEnv(),
	})
	if c != nil {
		defer func() { err = errors.Join(err, c.Close(ctx)) }()
	}
	if err != nil {
		return err
	}
	archive := filepath.Join(m.Dir, "images.tar")
	if err := errors.Join(harness.WriteImages(archive), c.Import(ctx, archive)); err != nil {
		return err
	}
	args := []string{"run", "--detach", "--runc-binary", wrapper, "--env", "GPUSLICE_MEMORY=8000m", "--env", "CUDA_DISABLE_CONTROL=true", harness.WorkloadImage, id}
	_, err = c.Ctr(ctx, append(args, program...)...)
	if err == nil {
		err = keep(m.Dir, id, "ctr")
	}
	if err != nil {
		return err
	}
	if _, err := c.Ctr(ctx, "task", "rm", "--force", id); err != nil {
		return err
	}

	pod, err := c.RunPod(ctx, harness.Pod{Name: "p", Handler: "gpuslice"})
	if err != nil {
		return err
	}
	container, err := pod.Start(ctx, harness.Container{Name: "main", Env: []string{"GPUSLICE_MEMORY=2GiB"}, User: 1000, ReadOnly: true})
	if err != nil {
		return err
	}
	return keep(m.Dir, container, "cri")
}

// keep finds the config that the wrapper found of a container, or the one that it left as
// it was, and writes it down.
func keep(dir, container, name string) error {
	var found string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Base(path) == ".config.json.before-gpuslice" && strings.Contains(path, container) {
			found = path
		}
		return nil // what vanishes meanwhile is another's
	})
	if err == nil && found == "" {
		err = errors.New("no config of it was found")
	}
	if err != nil {
		return fmt.Errorf("%s: container %s: %w", name, container, err)
	}
	data, err := os.ReadFile(found)
	if err != nil {
		return err
	}
	_, data, _ = bytes.Cut(data, []byte("\n")) // the first line is a digest
	var compact bytes.Buffer
	if err := json.Compact(&compact, data); err != nil {
		return fmt.Errorf("%s: %w", found, err)
	}
	tools, err := harness.Tool("containerd")
	if err != nil {
		return err
	}
	repository, err := harness.Repository()
	if err != nil {
		return err
	}
	text := strings.NewReplacer(filepath.Dir(tools), "/TOOLS", repository, "/REPOSITORY", container, id, container[:short], id[:short], dir, "/MACHINE").Replace(compact.String())
	fmt.Println("recorded", name)
	return os.WriteFile(filepath.Join(into, name+".json"), []byte(text+"\n"), 0o644)
}
