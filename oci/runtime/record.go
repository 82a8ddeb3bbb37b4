package ociruntime

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/gpuslice/gpuslice/ledger/orphans"
)

// podmanTimeout limits a creation by podman. As a service, podman lives on after a failed creation
// and does not report it.
const podmanTimeout = 2 * time.Minute

func defaultRoots() []string {
	roots := []string{"/run/runc", "/run/crun"}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		roots = append(roots, filepath.Join(dir, "runc"), filepath.Join(dir, "crun"))
	}
	return roots
}

func newRecord(proc orphans.Procfs, c creation) (orphans.Record, error) {
	r, err := orphans.NewRecord(proc, c.creator)
	r.Runtime, r.Roots = c.lowLevel, defaultRoots()
	if c.call.Root != "" {
		root, rootErr := filepath.Abs(c.call.Root)
		r.Roots, err = []string{root}, errors.Join(err, rootErr)
	}
	bundle, bundleErr := filepath.Abs(c.call.Bundle)
	r.Bundle = bundle
	if c.lowLevel == podmansRuntime {
		err = errors.Join(err, r.BoundCreator(podmanTimeout))
	}
	return r, errors.Join(err, bundleErr)
}
