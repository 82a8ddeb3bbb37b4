package request

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// Size is an amount of a GPU's memory: MiB, or a percentage of what may be granted of
// the GPU. Nothing is said where both are 0.
type Size struct {
	MiB     int64
	Percent int
}

// IsZero says that no size is given.
func (s Size) IsZero() bool { return s == Size{} }

// Of is the size in MiB on a GPU: a percentage is rounded down, and 1 MiB at least.
func (s Size) Of(gpu grant.GPU) int64 {
	if s.Percent == 0 {
		return s.MiB
	}
	return max(gpu.MemoryMiB/100*int64(s.Percent)+gpu.MemoryMiB%100*int64(s.Percent)/100, 1)
}

// String writes the size as ParseSize reads it.
func (s Size) String() string {
	switch {
	case s.Percent != 0:
		return strconv.Itoa(s.Percent) + "%"
	case s.MiB != 0 && s.MiB%1024 == 0:
		return strconv.FormatInt(s.MiB/1024, 10) + "GiB"
	default:
		return strconv.FormatInt(s.MiB, 10) + "MiB"
	}
}

// sizeForm is what ParseSize reads, for messages.
const sizeForm = `write 8GiB, 8000MiB or 25% (of the GPU)`

// fractionDigits bounds the digits behind a point; with them and the largest unit a
// product stays inside an int64.
const fractionDigits = 6

// sizeBits are the units, as powers of two: all are binary, as docker's --memory and
// HAMi have them, so that g, GB and GiB are one.
var sizeBits = map[string]uint{"k": 10, "m": 20, "g": 30, "t": 40}

// ParseSize reads a size as people write them: a number with a unit k, m, g or t in
// either case, alone or followed by b, i or ib ("8GiB", "8g", "8000m", "8Gi", "1.5 GB"),
// or a whole percentage ("25%"). Units are binary: 8g are 8192 MiB. What isn't a whole
// MiB is rounded down.
//
// A number without a unit is refused: docker's --memory would mean bytes by it, and
// Kubernetes' nvidia.com/gpumem MiB. So is nothing, less than 1 MiB, more than
// grant.MaxMemoryMiB, and anything below 1% or above 100%.
func ParseSize(text string) (Size, error) {
	return quoted(text, func(text string) (Size, error) { return parseSize(text, false) })
}

// parseHAMiSize is ParseSize of a number as HAMi-core reads it: without a unit it is
// bytes.
func parseHAMiSize(text string) (Size, error) {
	return quoted(text, func(text string) (Size, error) { return parseSize(text, true) })
}

func parseSize(text string, bytes bool) (Size, error) {
	end := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		end = len(text)
	}
	number := text[:end]
	unit := strings.ToLower(strings.TrimPrefix(text[end:], " "))
	if unit == "%" {
		return parsePercentSize(number)
	}
	bits, known := sizeBits[strings.TrimSuffix(strings.TrimSuffix(unit, "b"), "i")]
	switch {
	case unit == "" && bytes && isNumber(number):
	case unit == "" && isNumber(number):
		return Size{}, refuse(grant.ErrMalformed, "has no unit: write MiB, GiB or %% behind it")
	case !known:
		return Size{}, refuse(grant.ErrMalformed, "is not a size: %s", sizeForm)
	}
	mib, err := mebibytes(number, bits)
	switch {
	case err != nil:
		return Size{}, err
	case mib == 0 && unit == "":
		return Size{}, refuse(grant.ErrMalformed, "has no unit, so that it is bytes as HAMi reads it, and less than 1 MiB: %s", sizeForm)
	case mib == 0:
		return Size{}, refuse(grant.ErrMalformed, "is less than 1 MiB: %s", sizeForm)
	}
	return Size{MiB: mib}, nil
}

// isNumber says whether a text is a whole number in plain digits. One that begins with a
// 0 is not: C programs, HAMi-core among them, take it for octal.
func isNumber(text string) bool {
	return isDigits(text) && (text[0] != '0' || text == "0")
}

// mebibytes is a decimal number times a power of two, in MiB.
func mebibytes(number string, bits uint) (int64, error) {
	whole, fraction, point := strings.Cut(number, ".")
	if !isNumber(whole) || point && (!isDigits(fraction) || len(fraction) > fractionDigits) {
		return 0, refuse(grant.ErrMalformed, "is not a size: %s", sizeForm)
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	// The bound is in the unit's own terms, so that nothing overflows.
	if most := int64(grant.MaxMemoryMiB) << 20 >> bits; err != nil || n > most {
		return 0, refuse(grant.ErrMalformed, "is too much: %d MiB at most", grant.MaxMemoryMiB)
	}
	total, scale, part := n<<bits, int64(1), int64(0)
	for _, digit := range fraction {
		part, scale = part*10+int64(digit-'0'), scale*10
	}
	total += part << bits / scale
	if total > grant.MaxMemoryMiB<<20 {
		return 0, refuse(grant.ErrMalformed, "is too much: %d MiB at most", grant.MaxMemoryMiB)
	}
	return total >> 20, nil
}

// parsePercentSize reads the number of a percentage.
func parsePercentSize(number string) (Size, error) {
	percent, err := strconv.Atoi(number)
	if err != nil || !isNumber(number) || percent < 1 || percent > 100 {
		return Size{}, refuse(grant.ErrMalformed, "is not a part of a GPU's memory: write a whole number from 1%% to 100%%")
	}
	return Size{Percent: percent}, nil
}

// ParseCores reads a share of compute time: a whole percentage of a GPU, 1 to 100, with
// or without a %.
func ParseCores(text string) (int, error) {
	return quoted(text, func(text string) (int, error) {
		digits := strings.TrimSuffix(text, "%")
		percent, err := strconv.Atoi(digits)
		if err != nil || !isNumber(digits) || percent < 1 || percent > grant.MaxCorePercent {
			return 0, refuse(grant.ErrMalformed, "is not a share of compute time: write a whole number from 1 to %d, percent of a GPU", grant.MaxCorePercent)
		}
		return percent, nil
	})
}

// quoted calls parse, whose errors go on after the text that it was given.
func quoted[T any](text string, parse func(string) (T, error)) (T, error) {
	value, err := parse(text)
	if err != nil {
		err = fmt.Errorf("%s %w", quote.Short(text), err)
	}
	return value, err
}

// Amount is how much of one GPU is meant.
type Amount struct {
	// Memory is the hard limit of device memory; zero: not said.
	Memory Size
	// CorePercent is the share of the GPU's compute time, 1 to 100; 0: not said.
	CorePercent int
}

// String tells the amount to people.
func (a Amount) String() string {
	if a.CorePercent == 0 {
		return fmt.Sprintf("%v of memory", a.Memory)
	}
	return fmt.Sprintf("%v of memory and %d %% of compute time", a.Memory, a.CorePercent)
}
