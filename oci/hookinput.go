package oci

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
)

// maxHookInput bounds what a hook reads on stdin.
const maxHookInput = 16 << 20

// ReadState reads the container's state, which hooks get on stdin.
func ReadState(stdin io.Reader) (state rspec.State, err error) {
	if err := json.NewDecoder(io.LimitReader(stdin, maxHookInput)).Decode(&state); err != nil {
		return state, fmt.Errorf("read the container's state on stdin: %w", err)
	}
	return state, nil
}

// WithState calls do with the container's state. Its errors name the container.
func WithState(stdin io.Reader, do func(rspec.State) error) error {
	state, err := ReadState(stdin)
	if err != nil {
		return err
	}
	if err := do(state); err != nil {
		return fmt.Errorf("container %s: %w", ShortID(state.ID), err)
	}
	return nil
}

// ReadSpec reads a bundle's config.
func ReadSpec(bundle string) (*rspec.Spec, error) {
	data, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("read the container's bundle: %w", err)
	}
	spec := &rspec.Spec{}
	if err := json.Unmarshal(data, spec); err != nil {
		return nil, fmt.Errorf("read the container's bundle %s: %w", bundle, err)
	}
	return spec, nil
}

// RootPath returns the root directory of a bundle on the host; "" if its config has none.
func RootPath(bundle string, spec *rspec.Spec) string {
	switch {
	case spec.Root == nil || spec.Root.Path == "":
		return ""
	case filepath.IsAbs(spec.Root.Path):
		return filepath.Clean(spec.Root.Path)
	}
	return filepath.Join(bundle, spec.Root.Path)
}

// ShortID shortens a container ID as docker does.
func ShortID(id string) string {
	if len(id) == 64 {
		return id[:12]
	}
	return id
}
