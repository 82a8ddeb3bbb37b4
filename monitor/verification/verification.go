// Package verification has the report of `gpuslice verify`: which of the checks of a node's isolation passed, with which driver. The
// command writes it; doctor, status and the agent read it. It imports no other part of the product but internal packages.
package verification

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpuslice/gpuslice/internal/atomicfile"
)

// Version is the version of the file.
const Version = 1

// File is the path of the report below the directory of the installed limiter, which a reboot keeps.
const File = "verify/report.json"

// longest bounds what is read.
const longest = 1 << 20

// State is the result of one check.
type State string

const (
	OK     State = "ok"
	Failed State = "failed"
	NotRun State = "not run"
)

// Row is one check.
type Row struct {
	Check string `json:"check"`
	State State  `json:"state"`
	// Expected has the bounds, in words.
	Expected string `json:"expected"`
	Found    string `json:"found"`
	// Optional: a node without this check's part is verified without it.
	Optional bool `json:"optional,omitempty"`
}

// Outcome is the result of all checks.
type Outcome string

const (
	Verified    Outcome = "verified"
	NotVerified Outcome = "failed"
	Incomplete  Outcome = "incomplete"
)

// Report is what one run found.
type Report struct {
	Version int       `json:"version"`
	Program string    `json:"program"` // gpuslice's version
	At      time.Time `json:"at"`
	Node    string    `json:"node,omitempty"`
	// Driver and CUDA are versions.
	Driver string `json:"driver"`
	CUDA   string `json:"cuda,omitempty"`
	GPU    string `json:"gpu"` // UUID
	Model  string `json:"model"`
	// Way is how the containers were made.
	Way         string  `json:"way"`
	Enforcement string  `json:"enforcement,omitempty"`
	Outcome     Outcome `json:"outcome"`
	Rows        []Row   `json:"checks"`
}

// OutcomeOf returns the result of checks.
func OutcomeOf(rows []Row) Outcome {
	outcome := Verified
	if len(rows) == 0 {
		outcome = Incomplete
	}
	for _, r := range rows {
		switch {
		case r.State == Failed:
			return NotVerified
		case r.State != OK && !r.Optional:
			outcome = Incomplete
		}
	}
	return outcome
}

// failed are the names of the checks that failed.
func (r Report) failed() string {
	var names []string
	for _, row := range r.Rows {
		if row.State == Failed {
			names = append(names, row.Check)
		}
	}
	return strings.Join(names, ", ")
}

// Write replaces the report in the directory of the installed limiter.
func Write(libraryDir string, r Report) error {
	r.Version = Version
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	file := filepath.Join(libraryDir, File)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(file, append(data, '\n'), 0o644)
}

// Remove removes the report, and the directory that the chart mounts.
func Remove(libraryDir string) error {
	return os.RemoveAll(filepath.Join(libraryDir, filepath.Dir(File)))
}

// Read reads the report; fs.ErrNotExist: there is none.
func Read(libraryDir string) (Report, error) {
	return ReadFS(os.DirFS(libraryDir), ".")
}

// ReadFS is Read within a file system.
func ReadFS(fsys fs.FS, libraryDir string) (r Report, err error) {
	f, err := fsys.Open(path.Join(libraryDir, File))
	if err != nil {
		return r, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, longest))
	if err == nil {
		err = json.Unmarshal(bytes.TrimSpace(data), &r)
	}
	if err == nil && r.Version != Version {
		err = fmt.Errorf("its version is %d, not %d: run the gpuslice verify of this version", r.Version, Version)
	}
	if err == nil && r.Outcome != OutcomeOf(r.Rows) {
		err = errors.New("its outcome is not that of its checks: run gpuslice verify again")
	}
	if err != nil {
		return Report{}, fmt.Errorf("read %s: %w", File, err)
	}
	return r, nil
}

// Verdict is what a report means for the node as it is now.
type Verdict struct {
	// Status is "True", "False" or "Unknown", as of a node's condition.
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// At is when the report was made; zero: there is none.
	At time.Time `json:"at,omitzero"`
}

// Condition is the type of the node's condition.
const Condition = "GPUShareIsolationVerified"

// Reasons of a verdict.
const (
	ReasonVerified      = "Verified"
	ReasonFailed        = "CheckFailed"
	ReasonIncomplete    = "Incomplete"
	ReasonDriverChanged = "DriverChanged"
	ReasonDriverUnknown = "DriverUnknown"
	ReasonNoReport      = "NoReport"
	ReasonUnreadable    = "ReportUnreadable"
)

// Judge judges the result of Read. driver is the version of now; empty: not known, which verifies nothing.
func Judge(r Report, err error, driver string) Verdict {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Verdict{Status: "Unknown", Reason: ReasonNoReport, Message: "gpuslice verify has not run on this node"}
	case err != nil:
		return Verdict{Status: "Unknown", Reason: ReasonUnreadable, Message: err.Error()}
	}
	of := fmt.Sprintf("on %s with driver %s, gpuslice %s, %s", r.At.UTC().Format(time.RFC3339), r.Driver, r.Program, r.Model)
	v := Verdict{Status: "Unknown", At: r.At}
	switch {
	case driver != "" && driver != r.Driver:
		v.Reason, v.Message = ReasonDriverChanged, fmt.Sprintf("the driver is %s now; last run %s: %s", driver, of, r.Outcome)
	case r.Outcome == Verified && driver == "":
		v.Reason, v.Message = ReasonDriverUnknown, "the present driver's version is not known; last run "+of+": "+string(r.Outcome)
	case r.Outcome == Verified:
		v.Status, v.Reason, v.Message = "True", ReasonVerified, "verified "+of
	case r.Outcome == NotVerified:
		v.Status, v.Reason, v.Message = "False", ReasonFailed, "failed: "+r.failed()+"; run "+of
	default:
		v.Reason, v.Message = ReasonIncomplete, "not all checks ran, "+of
	}
	return v
}
