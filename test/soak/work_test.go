//go:build root

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuslice/gpuslice/test/harness"
)

const mib = 1 << 20

// inPods runs one pod: a few attempts of its container, as the kubelet makes them. Refusals and lost answers
// are counted, because processes are killed meanwhile; an error is what must never be.
func (s *soak) inPods(ctx context.Context, r *rand.Rand, name string) error {
	var annotations map[string]string
	grantMiB := 0
	if r.IntN(5) > 0 {
		grantMiB = 1000 + 100*r.IntN(60)
		annotations = map[string]string{"hami.io/vgpu-devices-to-allocate": fmt.Sprintf("%s,NVIDIA,%d,%d:;", s.gpu, grantMiB, 0)}
	}
	attempts := 1 + r.IntN(4)
	pod, err := s.RunPod(ctx, harness.Pod{Name: name, Annotations: annotations})
	if err != nil {
		s.count("pods that did not start")
		return harness.Until(ctx, patience, s.answers)
	}
	for attempt := range attempts {
		s.begun.Add(1)
		if err := s.attempt(ctx, r, pod, uint32(attempt), grantMiB); err != nil {
			return fmt.Errorf("pod %s attempt %d: %w", name, attempt, err)
		}
	}
	return harness.Until(ctx, patience, pod.Remove)
}

// answers reports whether containerd answers.
func (s *soak) answers(ctx context.Context) error {
	_, err := s.CRI.Status(ctx, &cri.StatusRequest{})
	return err
}

// programs are what containers do: look, take memory until they are refused, or stay until
// they are killed or removed.
var programs = [][]string{
	{harness.WorkloadDir + "/meminfo"},
	{harness.WorkloadDir + "/alloc"},
	{harness.WorkloadDir + "/hold", "--mib", "200"},
}

// attempt makes one container and looks what it has: by its spec, and by its own word.
func (s *soak) attempt(ctx context.Context, r *rand.Rand, pod *harness.Sandbox, number uint32, grantMiB int) error {
	program := programs[r.IntN(len(programs))]
	k := harness.Container{Name: "main", Attempt: number, Image: harness.GreedyImage, Command: program}
	id, err := pod.Create(ctx, k)
	if err != nil {
		s.count("refused")
		return harness.Until(ctx, patience, s.answers)
	}
	var limited bool
	err = harness.Until(ctx, patience, func(ctx context.Context) error {
		spec, err := s.Spec(ctx, id)
		if err == nil {
			limited, err = harness.LimitedOrNone(spec, s.StateDir())
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case limited && grantMiB == 0:
		return errors.New("a GPU without a grant")
	case limited:
		s.count("limited")
	default:
		s.count("no GPU")
	}
	if err := s.StartContainer(ctx, id); err != nil {
		s.count("not started")
		return harness.Until(ctx, patience, s.answers)
	}
	if program[0] == harness.WorkloadDir+"/hold" {
		return nil // the pod's removal ends it, or a breaker does
	}
	return s.askInside(ctx, pod, k, id, limited, grantMiB)
}

// askInside waits for the container's end and reads what it saw.
func (s *soak) askInside(ctx context.Context, pod *harness.Sandbox, k harness.Container, id string, limited bool, grantMiB int) error {
	code, log, err := pod.Ended(ctx, k, id, patience)
	if err != nil {
		return err
	}
	if log == "" || code > 4 {
		s.count("not heard of") // it was killed, or containerd was not there when it ended
		return nil
	}
	return asExpected(k.Command, limited, grantMiB, log)
}

// asExpected compares what a program saw with what it was given.
func asExpected(program []string, limited bool, grantMiB int, log string) error {
	v := harness.KeyValues(log)
	switch {
	case !limited && v["device_count"] != "" && v["device_count"] != "0":
	case !limited:
		return nil
	case strings.HasSuffix(program[0], "/meminfo") && v["device.0.total_bytes"] != strconv.Itoa(grantMiB*mib):
	case strings.HasSuffix(program[0], "/alloc") && !within(v["allocated_bytes"], grantMiB):
	default:
		return nil
	}
	return fmt.Errorf("limited: %v to %d MiB, and %v saw: %s", limited, grantMiB, program, log)
}

// within reports whether the allocation, if the program printed it, is below the limit.
func within(allocated string, grantMiB int) bool {
	bytes, err := strconv.ParseInt(allocated, 10, 64)
	return allocated == "" || err == nil && bytes <= int64(grantMiB)*mib
}

// inDocker has one container of docker's live.
func (s *soak) inDocker(ctx context.Context, r *rand.Rand, name string) error {
	s.begun.Add(1)
	grantMiB := 1000 + 100*r.IntN(20)
	program := programs[r.IntN(len(programs)-1)]
	args := []string{"run", "--name", name, "--network", "none", "--runtime", "gpuslice", "-e", fmt.Sprintf("GPUSLICE_MEMORY=%dMiB", grantMiB), harness.GreedyImage}
	out, err := s.docker.Docker(ctx, append(args, program...)...)
	switch {
	case err != nil:
		s.count("docker refused or lost")
	default:
		if err := asExpected(program, true, grantMiB, out); err != nil {
			return err
		}
		s.count("docker limited")
	}
	return harness.Until(ctx, patience, func(ctx context.Context) error {
		_, err := s.docker.Docker(ctx, "rm", "--force", name)
		if err != nil && strings.Contains(err.Error(), "No such container") {
			return nil
		}
		return err
	})
}
