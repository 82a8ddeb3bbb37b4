package ociruntime

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// recordName is our file in a claim's folder, beside the ledger's own.
const recordName = "runtime.json"

// record says by what a claim's container is found. It is the host's alone.
type record struct {
	// Nonce tells this claim from another of the same container id.
	Nonce string `json:"nonce"`
	// Creator is who makes the container: this program, and the low-level runtime that
	// it becomes by exec.
	Creator process `json:"creator"`
	// PIDNamespace is the one that Creator's number is of.
	PIDNamespace uint64 `json:"pidNamespace"`
	// Roots are where the low-level runtime may keep the container's state.
	Roots []string `json:"roots"`
	// Runtime is the low-level runtime, and Bundle the container's. They are for people.
	Runtime string `json:"runtime"`
	Bundle  string `json:"bundle"`
}

// defaultRoots are where runc and crun keep states that are not told where.
func defaultRoots() []string {
	roots := []string{"/run/runc", "/run/crun"}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		roots = append(roots, filepath.Join(dir, "runc"), filepath.Join(dir, "crun"))
	}
	return roots
}

// newRecord describes a container that creator is about to make.
func newRecord(proc procfs, creator int, c Call, lowLevel string) (record, error) {
	r := record{Nonce: rand.Text(), Roots: defaultRoots(), Runtime: lowLevel}
	var err error
	if c.Root != "" {
		root, rootErr := filepath.Abs(c.Root)
		r.Roots, err = []string{root}, rootErr
	}
	var bundleErr, processErr, namespaceErr error
	r.Bundle, bundleErr = filepath.Abs(c.Bundle)
	r.Creator, processErr = proc.identify(creator)
	r.PIDNamespace, namespaceErr = proc.namespace()
	return r, errors.Join(err, bundleErr, processErr, namespaceErr)
}

// write puts the record into a claim's folder that nobody else sees yet.
func (r record) write(dir string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, recordName), append(data, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", recordName, err)
	}
	return nil
}

// readRecord reads the record of a claim's folder; fs.ErrNotExist where it has none,
// because the claim is another's or gone.
func readRecord(dir string) (record, error) {
	data, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, fmt.Errorf("read %s: %w", filepath.Join(dir, recordName), err)
	}
	if r.Nonce == "" {
		return record{}, fmt.Errorf("read %s: it has no nonce", filepath.Join(dir, recordName))
	}
	return r, nil
}
