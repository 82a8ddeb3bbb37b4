package grant

import (
	"encoding/json"
	"fmt"

	"github.com/gpuslice/gpuslice/api"
)

// EncodeShares returns the value of gpuslice.io/shares: a container's array in gpuslice.io/grant.
func EncodeShares(shares []Share) (string, error) {
	if err := ValidateShares(shares); err != nil {
		return "", err
	}
	value, err := json.Marshal(shares)
	if err != nil {
		return "", fmt.Errorf("encode %s: %w", api.AnnotationShares, err)
	}
	return string(value), nil
}

// DecodeShares reads the value of gpuslice.io/shares.
func DecodeShares(value string) ([]Share, error) {
	array, err := parseJSON(value, MaxAnnotationBytes)
	var shares []Share
	if err == nil {
		shares, err = decodeShares(array)
	}
	if err != nil {
		return nil, inAnnotation(api.AnnotationShares, err)
	}
	return shares, nil
}
