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

// containerd sets these annotations after those of the pod, so a pod's author can't change them.
const (
	criType      = "io.kubernetes.cri.container-type"
	criNamespace = "io.kubernetes.cri.sandbox-namespace"
	crioType     = "io.kubernetes.cri-o.ContainerType"
)

const criBundles = "k8s.io"

// BarrierEnv is set in containers of exempt namespaces, so that the agent can detect the barrier.
const BarrierEnv = "GPUSLICE_BARRIER"

func isPod(c oci.Container) bool {
	return c.Annotations[criType] != "" || c.Annotations[crioType] != ""
}

// isExempt reports whether a container's namespace is exempt. It trusts only bundles of containerd's
// CRI: users of docker, podman and CRI-O can set annotations.
func (r *Runtime) isExempt(call Call, c oci.Container) bool {
	bundle, err := filepath.Abs(call.Bundle)
	return err == nil && filepath.Base(filepath.Dir(bundle)) == criBundles &&
		c.Annotations[criType] != "" && c.Annotations[crioType] == "" &&
		slices.Contains(r.Config.ExemptNamespaces, c.Annotations[criNamespace])
}

// admitPod selects the runtime for a container of Kubernetes, without the agent. NVIDIA's runtime gets
// containers with limits of the NRI plugin (if it has to inject their GPUs) and exempt namespaces.
// The low-level runtime, which ignores requests to NVIDIA's, gets all others.
func (r *Runtime) admitPod(ctx context.Context, cr *creation, spec *rspec.Spec, c oci.Container) error {
	if r.isExempt(cr.call, c) {
		if spec.Process != nil {
			spec.Process.Env = append(spec.Process.Env, BarrierEnv+"=1")
		}
		return cr.useNvidia(oci.RequestsGPU(c))
	}
	limited, err := r.limitedByNRI(ctx, c)
	if err != nil {
		return err
	}
	if limited {
		if oci.RequestsGPU(c) {
			return cr.useNvidia(true)
		}
		return nil
	}
	if reason, holds := holdsGPU(c); holds {
		return fmt.Errorf("the container has no gpuslice grant: %s: request a share (nvidia.com/gpu, nvidia.com/gpumem) instead", reason)
	}
	return oci.Apply(spec, oci.Void(c))
}

// useNvidia selects NVIDIA's runtime. If there is none, it fails only if needed is set.
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
