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

// Annotations that container runtimes of Kubernetes write. containerd sets them after those of the
// pod, so a pod's author can't change them.
const (
	criType      = "io.kubernetes.cri.container-type"
	criNamespace = "io.kubernetes.cri.sandbox-namespace"
	crioType     = "io.kubernetes.cri-o.ContainerType"
)

// criBundles is the directory of containerd's bundles for Kubernetes.
const criBundles = "k8s.io"

// BarrierEnv is set in containers of exempt namespaces. The agent reads it to detect the barrier.
const BarrierEnv = "GPUSLICE_BARRIER"

func isPod(c oci.Container) bool {
	return c.Annotations[criType] != "" || c.Annotations[crioType] != ""
}

// isExempt reports whether the operator exempts a container's Kubernetes namespace. Users of docker
// and podman can set every annotation, and users of CRI-O most of them, so only bundles of
// containerd's CRI are trusted.
func (r *Runtime) isExempt(call Call, c oci.Container) bool {
	bundle, err := filepath.Abs(call.Bundle)
	return err == nil && filepath.Base(filepath.Dir(bundle)) == criBundles &&
		c.Annotations[criType] != "" && c.Annotations[crioType] == "" &&
		slices.Contains(r.Config.ExemptNamespaces, c.Annotations[criNamespace])
}

// admitPod selects the runtime for a container of Kubernetes. NVIDIA's runtime creates containers
// with limits of the NRI plugin if it injects their GPUs, and those of exempt namespaces. The
// low-level runtime creates all others: it ignores requests to NVIDIA's. No agent is needed.
func (r *Runtime) admitPod(ctx context.Context, cr *creation, spec *rspec.Spec, c oci.Container) error {
	if r.isExempt(cr.call, c) {
		if spec.Process != nil {
			spec.Process.Env = append(spec.Process.Env, BarrierEnv+"=1")
		}
		return cr.useNvidia(oci.AsksForGPU(c))
	}
	limited, err := r.limitedByNRI(ctx, c)
	if err != nil {
		return err
	}
	if limited {
		if oci.AsksForGPU(c) {
			return cr.useNvidia(true)
		}
		return nil
	}
	if reason, holds := holdsGPU(c); holds {
		return fmt.Errorf("the container has no gpuslice grant: %s: request a share (nvidia.com/gpu, nvidia.com/gpumem) instead", reason)
	}
	return oci.Apply(spec, oci.Void(c))
}

// useNvidia selects NVIDIA's runtime if it exists. Without it, it fails if it is needed.
func (cr *creation) useNvidia(needed bool) error {
	switch {
	case isNvidia(cr.lowLevel):
	case cr.nvidia != "":
		cr.lowLevel = cr.nvidia
	case needed:
		return errors.New("the container needs NVIDIA's container runtime, which is not found or can't replace " + cr.lowLevel + ": set nvidiaRuntime in /etc/gpuslice/runtime.yaml to its path, with runc first in runtimes")
	}
	return nil
}
