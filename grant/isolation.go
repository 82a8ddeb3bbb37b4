package grant

import (
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// Isolation is what keeps a container within its share, from the weakest to the strongest.
type Isolation uint8

const (
	// IsolationAny as a request requires nothing; of a GPU it is not known.
	IsolationAny Isolation = iota
	IsolationLimiter
	IsolationDriver
	IsolationHardware
)

var isolations = []string{api.IsolationAny, api.IsolationLimiter, api.IsolationDriver, api.IsolationHardware}

func (i Isolation) String() string { return isolations[i] }

// ParseIsolation accepts the values of api.AnnotationIsolation.
func ParseIsolation(text string) (Isolation, error) {
	i := slices.Index(isolations, text)
	if i < 0 {
		return IsolationAny, Errorf(ErrMalformed, "must be hardware, driver, limiter or any")
	}
	return Isolation(i), nil
}

// RequestedIsolation is the weakest isolation that the author of these annotations accepts: the stronger one of
// gpuslice.io/isolation and of HAMi's mode "mig". Errors are ErrMalformed.
func RequestedIsolation(annotations map[string]string) (wanted Isolation, err error) {
	if value, there := annotations[api.AnnotationIsolation]; there {
		if wanted, err = ParseIsolation(value); err != nil {
			return wanted, inAnnotation(api.AnnotationIsolation, Errorf(ErrMalformed, "%s: %w", quote.Short(value), err))
		}
	}
	if OnlyMIG(annotations[api.AnnotationMode]) {
		wanted = IsolationHardware
	}
	return wanted, nil
}

// OnlyMIG reports whether MIG is the only mode in a value of HAMi's annotation.
func OnlyMIG(modes string) bool {
	only := false
	for mode := range strings.SplitSeq(modes, ",") {
		switch strings.TrimSpace(mode) {
		case "":
		case api.ModeMIG:
			only = true
		default:
			return false
		}
	}
	return only
}

// Whole reports whether the shares have all that can be granted of their devices: MIG devices, and GPUs of which the
// ledger gives no other container a part.
func Whole(shares []Share, gpus map[string]GPU) bool {
	for _, s := range shares {
		if gpu, known := gpus[s.UUID]; !known || s.MemoryMiB < gpu.MemoryMiB {
			return false
		}
	}
	return len(shares) > 0
}

// Check compares a request with what a container would get: shares, and what limits it to them. Errors are ErrIsolation.
func (i Isolation) Check(shares []Share, gpus map[string]GPU, limited Isolation) error {
	switch {
	case limited >= i || Whole(shares, gpus):
		return nil
	case i == IsolationHardware:
		return Errorf(ErrIsolation, "the isolation hardware is requested (annotation %s), and the grant is a part of a GPU", api.AnnotationIsolation)
	case limited == IsolationAny:
		return Errorf(ErrIsolation, "the isolation %s is requested (annotation %s), and the container disables its limiter", i, api.AnnotationIsolation)
	}
	return Errorf(ErrIsolation, "the isolation %s is requested (annotation %s), and only the %s would hold the container to its share here", i, api.AnnotationIsolation, limited)
}
