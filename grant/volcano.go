package grant

import (
	"context"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

// decodeVolcano reads the value of Volcano's annotation (its pkg/scheduler/api/devices/nvidia/vgpu/utils.go, encodePodDevices):
// HAMi's coding without the last ";", and with a position only for each app container that requests vGPUs. Its device
// plugin empties positions of the second annotation.
func decodeVolcano(value string) (Granted, error) {
	if value != "" && !strings.HasSuffix(value, ";") {
		value += ";"
	}
	positional, err := DecodeHAMi(value)
	return Granted{Positional: positional}, err
}

// findRequester returns the position of a container where only containers with devices have one. The kubelet's list has
// them in the order of the pod's spec.
func findRequester(ctx context.Context, positional Positional, pod Pod, container string, names ContainerNames) (int, error) {
	const fix = "write the grant by name into " + api.AnnotationGrant
	if names == nil {
		return 0, Errorf(ErrAmbiguous, "%d positions, and the containers with devices are unknown without a kubelet: %s", len(positional), fix)
	}
	listed, err := names.ContainerNames(ctx, pod)
	if err != nil {
		return 0, Errorf(ErrAmbiguous, "%d positions, and the containers with devices could not be read from the kubelet: %w; %s", len(positional), err, fix)
	}
	listed = slices.DeleteFunc(slices.Clone(listed), func(c ContainerDevices) bool { return c.Devices == 0 })
	sizes := counts(positional, func(position []Share) int { return len(position) })
	if !slices.Equal(sizes, counts(listed, func(c ContainerDevices) int { return c.Devices })) {
		return 0, Errorf(ErrAmbiguous, "they have %v devices, which does not match the containers that the kubelet lists (%s); %s", sizes, describeListed(listed), fix)
	}
	return slices.IndexFunc(listed, func(c ContainerDevices) bool { return c.Name == container }), nil
}
