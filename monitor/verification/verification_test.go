package verification_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/monitor/verification"
)

var at = time.Date(2026, 11, 27, 1, 2, 3, 0, time.UTC)

func row(check string, s verification.State) verification.Row {
	return verification.Row{Check: check, State: s, Expected: "more", Found: "less"}
}

func report(rows ...verification.Row) verification.Report {
	return verification.Report{
		Version: verification.Version, Program: "v1", At: at, Driver: "580.1", GPU: "GPU-1", Model: "NVIDIA H200", Way: "run",
		Outcome: verification.OutcomeOf(rows), Rows: rows,
	}
}

func TestOutcome(t *testing.T) {
	optional := row("audit", verification.NotRun)
	optional.Optional = true
	ok, failed, notRun := row("a", verification.OK), row("b", verification.Failed), row("c", verification.NotRun)
	for _, c := range []struct {
		rows []verification.Row
		want verification.Outcome
	}{
		{nil, verification.Incomplete},
		{[]verification.Row{ok}, verification.Verified},
		{[]verification.Row{ok, optional}, verification.Verified},
		{[]verification.Row{ok, notRun}, verification.Incomplete},
		{[]verification.Row{notRun, ok, failed}, verification.NotVerified},
		{[]verification.Row{failed, notRun, optional}, verification.NotVerified},
		{[]verification.Row{row("d", "")}, verification.Incomplete},
	} {
		require.Equal(t, c.want, verification.OutcomeOf(c.rows), "%v", c.rows)
	}
}

// What is written is read; what is not a whole report of this version is an error, and never a verified node.
func TestReadAndWrite(t *testing.T) {
	dir := t.TempDir()
	_, err := verification.Read(dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
	want := report(row("a", verification.OK))
	require.NoError(t, verification.Write(dir, want))
	got, err := verification.Read(dir)
	require.NoError(t, err)
	require.Equal(t, want, got)
	file := filepath.Join(dir, verification.File)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o644), info.Mode())
	for _, text := range []string{
		"", "{", `{"version":2,"outcome":"verified","checks":[{"check":"a","state":"ok"}]}`, `{"version":1,"outcome":"verified"}`,
		`{"version":1,"outcome":"verified","checks":[{"check":"a","state":"failed"}]}`,
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		got, err := verification.Read(dir)
		require.Error(t, err, text)
		require.NotErrorIs(t, err, fs.ErrNotExist)
		require.Equal(t, "Unknown", verification.Judge(got, err, "").Status)
	}
}

func TestJudge(t *testing.T) {
	good, bad := report(row("a", verification.OK)), report(row("limiter", verification.Failed), row("shares", verification.Failed))
	for name, c := range map[string]struct {
		of     verification.Report
		err    error
		driver string
		want   verification.Verdict
	}{
		"verified": {good, nil, "580.1", verification.Verdict{Status: "True", Reason: "Verified", At: at,
			Message: "verified on 2026-11-27T01:02:03Z with driver 580.1, gpuslice v1, NVIDIA H200"}},
		"the driver is not known": {good, nil, "", verification.Verdict{Status: "Unknown", Reason: "DriverUnknown", At: at,
			Message: "the present driver's version is not known; last run on 2026-11-27T01:02:03Z with driver 580.1, gpuslice v1, NVIDIA H200: verified"}},
		"failed with a driver that is not known": {bad, nil, "", verification.Verdict{Status: "False", Reason: "CheckFailed", At: at,
			Message: "failed: limiter, shares; run on 2026-11-27T01:02:03Z with driver 580.1, gpuslice v1, NVIDIA H200"}},
		"another driver": {good, nil, "580.2", verification.Verdict{Status: "Unknown", Reason: "DriverChanged", At: at,
			Message: "the driver is 580.2 now; last run on 2026-11-27T01:02:03Z with driver 580.1, gpuslice v1, NVIDIA H200: verified"}},
		"failed": {bad, nil, "580.1", verification.Verdict{Status: "False", Reason: "CheckFailed", At: at,
			Message: "failed: limiter, shares; run on 2026-11-27T01:02:03Z with driver 580.1, gpuslice v1, NVIDIA H200"}},
		"incomplete": {report(), nil, "580.1", verification.Verdict{Status: "Unknown", Reason: "Incomplete", At: at,
			Message: "not all checks ran, on 2026-11-27T01:02:03Z with driver 580.1, gpuslice v1, NVIDIA H200"}},
		"none": {verification.Report{}, fs.ErrNotExist, "580.1", verification.Verdict{Status: "Unknown", Reason: "NoReport",
			Message: "gpuslice verify has not run on this node"}},
		"unreadable": {verification.Report{}, errors.New("no"), "580.1", verification.Verdict{Status: "Unknown", Reason: "ReportUnreadable", Message: "no"}},
	} {
		require.Equal(t, c.want, verification.Judge(c.of, c.err, c.driver), name)
	}
}
