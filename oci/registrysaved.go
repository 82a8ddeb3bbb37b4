package oci

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// savedSnapshot is what the specs said, in a file. Devices of one spec have their common
// edits once.
type savedSnapshot struct {
	Kind    string                    `json:"kind"`
	Dirs    []string                  `json:"dirs"`
	Files   []savedFile               `json:"files"`
	Commons []*cdispec.ContainerEdits `json:"commons"`
	Devices map[string]savedDevice    `json:"devices"`
}

type savedFile struct {
	Path    string `json:"path"`
	Size    int64  `json:"size"`
	Changed int64  `json:"changed"`
}

type savedDevice struct {
	Common int                     `json:"common"`
	Own    *cdispec.ContainerEdits `json:"own"`
}

// NewSavedRegistry is NewRegistry for programs that live as long as one container's
// creation: what the specs say is kept in a file, and the specs are read again, which
// takes milliseconds, only when one changed. The file is the caller's alone to write.
func NewSavedRegistry(cfg RegistryConfig, path string) (*Registry, error) {
	r, err := newRegistry(cfg)
	if err != nil {
		return nil, err
	}
	files := listSpecs(r.dirs) // first: what changes while they are read is read again
	if saved := readSnapshot(path); saved != nil && saved.of(r, files) {
		r.checked = r.now()
		r.current.Store(saved.snapshot(files))
		return r, nil
	}
	if err := r.open(files); err != nil {
		return nil, err
	}
	if r.Err() == nil { // those of a spec that can't be read are said each time
		_ = r.save(path) // it costs the next one its time
	}
	return r, nil
}

// readSnapshot reads a file; nil where there is none that can be read.
func readSnapshot(path string) *savedSnapshot {
	data, err := rawfile.Read(path)
	if err != nil {
		return nil
	}
	saved := decodeSnapshot(data)
	if saved == nil {
		return nil
	}
	for _, d := range saved.Devices {
		if d.Own == nil || d.Common < 0 || d.Common >= len(saved.Commons) || saved.Commons[d.Common] == nil {
			return nil
		}
	}
	return saved
}

// of says whether it is of a registry's specs as they are now.
func (s *savedSnapshot) of(r *Registry, files []specFile) bool {
	return s.Kind == r.kind && slices.Equal(s.Dirs, r.dirs) && slices.EqualFunc(s.Files, files, func(a savedFile, b specFile) bool {
		return specFile{a.Path, a.Size, a.Changed} == b
	})
}

func (s *savedSnapshot) snapshot(files []specFile) *snapshot {
	now := &snapshot{devices: make(map[string]gpuEdits, len(s.Devices)), files: files}
	for name, d := range s.Devices {
		now.devices[name] = gpuEdits{common: s.Commons[d.Common], own: d.Own}
	}
	return now
}

// save writes the snapshot by a rename.
func (r *Registry) save(path string) error {
	now := r.current.Load()
	saved := savedSnapshot{Kind: r.kind, Dirs: r.dirs, Devices: map[string]savedDevice{}}
	for _, f := range now.files {
		saved.Files = append(saved.Files, savedFile{f.path, f.size, f.changed})
	}
	index := map[string]int{}
	for name, d := range now.devices {
		common, err := json.Marshal(d.common)
		if err != nil {
			return err
		}
		i, known := index[string(common)]
		if !known {
			i = len(saved.Commons)
			index[string(common)], saved.Commons = i, append(saved.Commons, d.common)
		}
		saved.Devices[name] = savedDevice{Common: i, Own: d.own}
	}
	var data bytes.Buffer
	if err := json.NewEncoder(&data).Encode(saved); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // gone already once renamed
	_, err = temp.Write(data.Bytes())
	if closed := temp.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}
