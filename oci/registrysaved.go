package oci

import (
	"encoding/json"
	"slices"

	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// NewSavedRegistry is NewRegistry for short-lived programs. It saves the specs' content in a file that only the
// caller may write, because reading them takes milliseconds.
func NewSavedRegistry(cfg RegistryConfig, path string) (*Registry, error) {
	r, err := newRegistry(cfg)
	if err != nil {
		return nil, err
	}
	files := listSpecs(r.dirs) // first, so that later changes are seen
	if saved := readSnapshot(path); saved != nil && saved.Kind == r.kind && slices.Equal(saved.Dirs, r.dirs) && slices.Equal(saved.Files, files) {
		r.checked = r.now()
		r.current.Store(saved)
		return r, nil
	}
	if err := r.open(files); err != nil {
		return nil, err
	}
	if r.Err() == nil { // else each call reports the unusable specs
		if data, err := json.Marshal(r.current.Load()); err == nil {
			_ = atomicfile.Write(path, data, 0o600) // without it the next call only takes longer
		}
	}
	return r, nil
}

func readSnapshot(path string) *snapshot {
	data, err := rawfile.Read(path)
	if err != nil {
		return nil
	}
	var saved snapshot
	if json.Unmarshal(data, &saved) != nil {
		return nil
	}
	for _, spec := range saved.Specs {
		if spec.Common == nil {
			return nil
		}
	}
	return &saved
}
