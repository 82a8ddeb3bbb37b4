package cdispec

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// Write writes a spec to a file, unless that has the same content. It sets the spec's version.
func Write(dir, name string, spec *cdispec.Spec) (changed bool, err error) {
	path := filepath.Join(dir, name)
	version, err := cdispec.MinimumRequiredVersion(spec)
	if err != nil {
		return false, fmt.Errorf("CDI spec %s: %w", path, err)
	}
	spec.Version = version
	if same(path, spec) {
		return false, nil
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	if err != nil {
		return false, fmt.Errorf("CDI spec %s: %w", path, err)
	}
	if err := cache.WriteSpec(spec, name); err != nil {
		return false, fmt.Errorf("CDI spec %s: %w", path, err)
	}
	// Rootless programs read it too.
	if err := os.Chmod(path, 0o644); err != nil {
		return true, fmt.Errorf("CDI spec %s: %w", path, err)
	}
	return true, nil
}

func same(path string, spec *cdispec.Spec) bool {
	info, statErr := os.Stat(path)
	have, readErr := cdi.ReadSpec(path, 0)
	want, encodeErr := Encode(spec)
	if errors.Join(statErr, readErr, encodeErr) != nil || info.Mode().Perm() != 0o644 {
		return false
	}
	normal, err := cdi.ParseSpec(want)
	return err == nil && reflect.DeepEqual(have.Spec, normal)
}

func Remove(dir, name string) (removed bool, err error) {
	err = os.Remove(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Others returns the specs of a kind, except but. A directory can have several names (/run/cdi and
// /var/run/cdi).
func Others(dirs []string, kind, but string) ([]string, error) {
	var real []string
	for _, dir := range dirs {
		if dir = resolved(dir); !slices.Contains(real, dir) {
			real = append(real, dir)
		}
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(real...), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, fmt.Errorf("read the CDI specs in %s: %w", strings.Join(dirs, ", "), err)
	}
	but = filepath.Join(resolved(filepath.Dir(but)), filepath.Base(but))
	vendor, class, _ := strings.Cut(kind, "/")
	var paths []string
	for _, spec := range cache.GetVendorSpecs(vendor) {
		if spec.GetClass() == class && filepath.Clean(spec.GetPath()) != but {
			paths = append(paths, spec.GetPath())
		}
	}
	slices.Sort(paths)
	return paths, nil
}

func resolved(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return filepath.Clean(dir)
}

func Encode(spec *cdispec.Spec) ([]byte, error) {
	data, err := yaml.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode the CDI spec: %w", err)
	}
	return data, nil
}
