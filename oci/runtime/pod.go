package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuslice/gpuslice/oci"
)

// Annotations that Kubernetes' container runtimes write into each config. containerd sets them
// after those that it copies from a pod, so a pod's author can't change them.
const (
	criType      = "io.kubernetes.cri.container-type"
	criNamespace = "io.kubernetes.cri.sandbox-namespace"
	crioType     = "io.kubernetes.cri-o.ContainerType"
)

// criBundles is the directory of the bundles of containerd's namespace for Kubernetes.
const criBundles = "k8s.io"

// BarrierEnv is set in containers of exempt namespaces. The agent is one of them, and reports a
// node without the barrier.
const BarrierEnv = "GPUSLICE_BARRIER"

// isPod says whether Kubernetes runs a container.
func isPod(c oci.Container) bool {
	return c.Annotations[criType] != "" || c.Annotations[crioType] != ""
}

// isExempt says whether the operator exempts a container's Kubernetes namespace. Users of
// docker and podman can set every annotation, and users of CRI-O most of them, so only
// bundles of containerd's CRI are trusted.
func (r *Runtime) isExempt(call Call, c oci.Container) bool {
	bundle, err := filepath.Abs(call.Bundle)
	return err == nil && filepath.Base(filepath.Dir(bundle)) == criBundles &&
		c.Annotations[criType] != "" && c.Annotations[crioType] == "" &&
		slices.Contains(r.Config.ExemptNamespaces, c.Annotations[criNamespace])
}

// admitPod selects the runtime that creates a container of Kubernetes. NVIDIA's runtime creates
// containers that the NRI plugin has limited and that it injects GPUs into, and those of exempt
// namespaces. The low-level runtime creates all others, so that nothing reads their requests to
// NVIDIA. This needs no agent.
func (r *Runtime) admitPod(ctx context.Context, o *order, spec *rspec.Spec, c oci.Container) error {
	if r.isExempt(o.call, c) {
		if spec.Process != nil {
			spec.Process.Env = append(spec.Process.Env, BarrierEnv+"=1")
		}
		return o.toNvidia(oci.AsksForGPU(c))
	}
	limited, err := r.limitedByNRI(ctx, c)
	if err != nil {
		return err
	}
	if limited {
		if oci.AsksForGPU(c) {
			return o.toNvidia(true)
		}
		return nil
	}
	if reason, holds := holdsGPU(c); holds {
		return fmt.Errorf("the container has no gpuslice grant: %s: request a share (nvidia.com/gpu, nvidia.com/gpumem) instead", reason)
	}
	return oci.Apply(spec, oci.Void(c))
}

// toNvidia selects NVIDIA's runtime, if it is there; needed: it is an error if it is not.
func (o *order) toNvidia(needed bool) error {
	switch {
	case isNvidia(o.lowLevel):
	case o.nvidia != "":
		o.lowLevel = o.nvidia
	case needed:
		return errors.New("the container's GPUs come by NVIDIA's container runtime, which is not found, or can't replace " + o.lowLevel + ": set nvidiaRuntime in /etc/gpuslice/runtime.yaml to its path, with runc first in runtimes")
	}
	return nil
}
