// Package size reads and writes sizes of GPU memory as people write them: 8GiB, 8000MiB, 25%.
package size

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/quote"
)

// Size is GPU memory, in MiB or in percent of the GPU's grantable memory. Zero is not set.
type Size struct {
	MiB     int64
	Percent int
}

func (s Size) IsZero() bool { return s == Size{} }

// Of returns MiB on a GPU, at least 1.
func (s Size) Of(gpu grant.GPU) int64 {
	if s.Percent == 0 {
		return s.MiB
	}
	return max(gpu.MemoryMiB/100*int64(s.Percent)+gpu.MemoryMiB%100*int64(s.Percent)/100, 1)
}

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

const sizeForm = `use 8GiB, 8000MiB or 25% (of the GPU)`

const fractionDigits = 6 // so that products fit in an int64

// sizeBits are the units: binary, as in docker's --memory and in HAMi.
var sizeBits = map[string]uint{"k": 10, "m": 20, "g": 30, "t": 40}

// Parse reads a number with a binary unit ("8GiB", "8g", "8000m", "8Gi", "1.5 GB") or a whole
// percentage ("25%"). It rounds down to whole MiB. A number without a unit is rejected: it is bytes
// in docker's --memory and MiB in nvidia.com/gpumem.
func Parse(text string) (Size, error) {
	return quote.Reading(text, func(text string) (Size, error) { return parse(text, false) })
}

// ParseHAMi is Parse, but a number without a unit is in bytes, as in HAMi-core.
func ParseHAMi(text string) (Size, error) {
	return quote.Reading(text, func(text string) (Size, error) { return parse(text, true) })
}

func parse(text string, bytes bool) (Size, error) {
	end := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		end = len(text)
	}
	number := text[:end]
	unit := strings.ToLower(strings.TrimPrefix(text[end:], " "))
	if unit == "%" {
		return parsePercent(number)
	}
	bits, known := sizeBits[strings.TrimSuffix(strings.TrimSuffix(unit, "b"), "i")]
	switch {
	case unit == "" && bytes && IsNumber(number):
	case unit == "" && IsNumber(number):
		return Size{}, grant.Errorf(grant.ErrMalformed, "has no unit: add MiB, GiB or %%")
	case !known:
		return Size{}, grant.Errorf(grant.ErrMalformed, "is not a size: %s", sizeForm)
	}
	mib, err := mebibytes(number, bits)
	switch {
	case err != nil:
		return Size{}, err
	case mib == 0 && unit == "":
		return Size{}, grant.Errorf(grant.ErrMalformed, "has no unit, is therefore in bytes as in HAMi, and is less than 1 MiB: %s", sizeForm)
	case mib == 0:
		return Size{}, grant.Errorf(grant.ErrMalformed, "is less than 1 MiB: %s", sizeForm)
	}
	return Size{MiB: mib}, nil
}

// IsNumber rejects a leading 0, which C programs such as HAMi-core read as octal.
func IsNumber(text string) bool {
	return IsDigits(text) && (text[0] != '0' || text == "0")
}

// mebibytes returns a decimal number times a power of two, in MiB.
func mebibytes(number string, bits uint) (int64, error) {
	whole, fraction, point := strings.Cut(number, ".")
	if !IsNumber(whole) || point && (!IsDigits(fraction) || len(fraction) > fractionDigits) {
		return 0, grant.Errorf(grant.ErrMalformed, "is not a size: %s", sizeForm)
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if most := int64(grant.MaxMemoryMiB) << 20 >> bits; err != nil || n > most {
		return 0, grant.Errorf(grant.ErrMalformed, "is too large: the maximum is %d MiB", grant.MaxMemoryMiB)
	}
	total, scale, part := n<<bits, int64(1), int64(0)
	for _, digit := range fraction {
		part, scale = part*10+int64(digit-'0'), scale*10
	}
	total += part << bits / scale
	if total > grant.MaxMemoryMiB<<20 {
		return 0, grant.Errorf(grant.ErrMalformed, "is too large: the maximum is %d MiB", grant.MaxMemoryMiB)
	}
	return total >> 20, nil
}

func parsePercent(number string) (Size, error) {
	percent, err := strconv.Atoi(number)
	if err != nil || !IsNumber(number) || percent < 1 || percent > 100 {
		return Size{}, grant.Errorf(grant.ErrMalformed, "is not a percentage of GPU memory: use a whole number from 1%% to 100%%")
	}
	return Size{Percent: percent}, nil
}

// IsDigits is false for an empty text.
func IsDigits(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }

// Limits reports whether it is less than a whole GPU.
func (s Size) Limits() bool { return s.MiB != 0 || s.Percent != 0 && s.Percent < 100 }

// UnmarshalYAML reads a size as Parse does.
func (s *Size) UnmarshalYAML(n *yaml.Node) error { return Scalar(n, s, Parse) }

// Scalar decodes a scalar with the parser of the variables.
func Scalar[T any](n *yaml.Node, into *T, parse func(string) (T, error)) (err error) {
	if n.Kind != yaml.ScalarNode {
		err = errors.New("must be a single value")
	} else {
		*into, err = parse(n.Value)
	}
	if err != nil {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: column %d: %v", n.Line, n.Column, err)}}
	}
	return nil
}
