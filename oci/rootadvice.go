package oci

import (
	"errors"
	"fmt"
	"io/fs"
)

// AdviseRoot adds to a missing permission what a user of a rootless engine can do.
func AdviseRoot(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: GPU shares are reserved by root, in one ledger for the machine: start the container with root's engine (sudo podman, or docker's system daemon), not with a rootless one", err)
	}
	return err
}
