package ociruntime

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
)

// report tells of an error where runc would: on stderr, and in the file of --log, from
// which the containerd shim, docker and podman take what they show to people.
func report(stderr io.Writer, c Call, problem error, now time.Time) error {
	text := "gpuslice: " + problem.Error()
	_, err := fmt.Fprintln(stderr, text)
	if c.Log == "" || c.Log == "/dev/stderr" {
		return err
	}
	return errors.Join(err, logTo(c.Log, logLine(c.LogFormat, "error", text, now)))
}

// warn writes a warning where runc would: to the file of --log, and to stderr only where there is
// none, because a container that is made has that stderr too.
func warn(stderr io.Writer, c Call, warning string, now time.Time) error {
	text := "gpuslice: " + warning
	if c.Log == "" || c.Log == "/dev/stderr" {
		_, err := fmt.Fprintln(stderr, text)
		return err
	}
	return logTo(c.Log, logLine(c.LogFormat, "warning", text, now))
}

// logLine is one entry of runc's log, in its two formats.
func logLine(format, level, text string, now time.Time) string {
	stamp := now.Format(time.RFC3339)
	if format != "json" {
		return "time=" + strconv.Quote(stamp) + " level=" + level + " msg=" + strconv.Quote(text) + "\n"
	}
	line, _ := json.Marshal(struct {
		Level string `json:"level"`
		Msg   string `json:"msg"`
		Time  string `json:"time"`
	}{level, text, stamp}) // strings always can
	return string(line) + "\n"
}

// logTo appends to a log file, which may be a pipe of the caller.
func logTo(path, line string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, line)
	return errors.Join(err, f.Close())
}
