package ociruntime

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/gpuslice/gpuslice/ledger/orphans"
)

// podmanPatience bounds how long podman may make a container: from its precreate hook to
// the low-level runtime's state, or to the container's mounts. Podman itself lives on, as
// a service for ever, and says nothing of a creation that failed.
const podmanPatience = 2 * time.Minute

// defaultRoots are where runc and crun keep states that are not told where.
func defaultRoots() []string {
	roots := []string{"/run/runc", "/run/crun"}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		roots = append(roots, filepath.Join(dir, "runc"), filepath.Join(dir, "crun"))
	}
	return roots
}

// newRecord describes a container that is about to be made.
func newRecord(proc orphans.Procfs, o order) (orphans.Record, error) {
	r, err := orphans.NewRecord(proc, o.creator)
	r.Runtime, r.Roots = o.lowLevel, defaultRoots()
	if o.call.Root != "" {
		root, rootErr := filepath.Abs(o.call.Root)
		r.Roots, err = []string{root}, errors.Join(err, rootErr)
	}
	bundle, bundleErr := filepath.Abs(o.call.Bundle)
	r.Bundle = bundle
	if o.lowLevel == podmansRuntime {
		err = errors.Join(err, r.BoundCreator(podmanPatience))
	}
	return r, errors.Join(err, bundleErr)
}
