package cdispec

import (
	"fmt"

	"go.yaml.in/yaml/v3"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// Encode returns a spec as YAML.
func Encode(spec *cdispec.Spec) ([]byte, error) {
	data, err := yaml.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode the CDI spec: %w", err)
	}
	return data, nil
}
