package grant

import (
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// CoreCeiling returns a pod's soft ceiling: how much of its GPUs' compute time its containers can use while others
// are idle, in percent of a GPU; 0: none. gpuslice.io/core-ceiling takes precedence. Errors are ErrMalformed.
func CoreCeiling(pod Pod, container string) (int, error) {
	for _, key := range []string{api.AnnotationCoreCeiling, api.AnnotationVcudaCoreCeiling} {
		value, ok := pod.Annotations[key]
		if !ok {
			continue
		}
		percent, err := parseNumber(value, 1, MaxCorePercent)
		if err != nil {
			return 0, inPod(pod, container, inAnnotation(key, Errorf(ErrMalformed, "%s: must be 1 to %d percent of a GPU, in plain digits", quote.Short(value), MaxCorePercent)))
		}
		return int(percent), nil
	}
	return 0, nil
}
