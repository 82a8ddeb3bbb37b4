package grant

import "github.com/gpuslice/gpuslice/internal/quote"

// The annotations by which a pod's author asks for a soft ceiling of compute time: its
// containers may use so many percent of their GPUs while others leave them idle, and have
// their share in any case. The second is gpu-manager's.
const (
	AnnotationCoreCeiling      = "gpuslice.io/core-ceiling"
	AnnotationVcudaCoreCeiling = "tencent.com/vcuda-core-limit"
)

// CoreCeiling is the soft ceiling that a pod's annotations ask for, in percent of a GPU,
// 0 for none. It takes nothing from others, so that anybody may ask for it. Ours is read
// where both are there. An error is ErrMalformed.
func CoreCeiling(pod Pod, container string) (int, error) {
	for _, key := range []string{AnnotationCoreCeiling, AnnotationVcudaCoreCeiling} {
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
