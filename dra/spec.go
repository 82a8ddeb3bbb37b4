package dra

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/prepared"
	"github.com/gpuslice/gpuslice/internal/atomicfile"
)

func specName(uid string) string { return api.CDIClaimSpecPrefix + uid + ".json" }

// writeSpec writes the CDI spec of a prepared ResourceClaim: a device for each request, which mounts the record.
func (d *Driver) writeSpec(r prepared.Record) error {
	data, err := specOf(r, d.Prepared.Path(r.UID))
	if err != nil {
		return fmt.Errorf("CDI spec of ResourceClaim %s/%s: %w", r.Namespace, r.Name, err)
	}
	path := filepath.Join(d.CDIDir, specName(r.UID))
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
		return nil
	}
	if err := os.MkdirAll(d.CDIDir, 0o755); err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o644)
}

func specOf(r prepared.Record, path string) ([]byte, error) {
	spec := &cdispec.Spec{Kind: api.CDIClaimKind}
	for _, name := range r.Devices() {
		spec.Devices = append(spec.Devices, cdispec.Device{Name: name, ContainerEdits: cdispec.ContainerEdits{Mounts: []*cdispec.Mount{{
			HostPath: path, ContainerPath: prepared.ContainerPath(name), Options: []string{"ro", "nosuid", "nodev", "noexec", "bind"},
		}}}})
	}
	var err error
	if spec.Version, err = cdispec.MinimumRequiredVersion(spec); err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(spec, "", "  ")
	return append(data, '\n'), err
}

// removeSpec accepts UIDs of ResourceClaims that were never prepared.
func (d *Driver) removeSpec(uid string) error {
	if !prepared.ValidUID(uid) {
		return nil
	}
	err := os.Remove(filepath.Join(d.CDIDir, specName(uid)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeUnfinishedSpecs removes what a kill left.
func (d *Driver) removeUnfinishedSpecs() error {
	err := atomicfile.RemoveUnfinished(d.CDIDir, func(file string) bool { return strings.HasPrefix(file, api.CDIClaimSpecPrefix) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
