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

// report writes an error to stderr and to the file of --log, as runc does. containerd, docker and
// podman show it from there.
func report(stderr io.Writer, c Call, problem error, now time.Time) error {
	text := "gpuslice: " + problem.Error()
	_, err := fmt.Fprintln(stderr, text)
	if c.Log == "" || c.Log == "/dev/stderr" {
		return err
	}
	return errors.Join(err, logTo(c.Log, logLine(c.LogFormat, "error", text, now)))
}

// warn writes a warning to the file of --log. It writes to stderr only without --log, because a
// container that is created has the same stderr.
func warn(stderr io.Writer, c Call, warning string, now time.Time) error {
	text := "gpuslice: " + warning
	if c.Log == "" || c.Log == "/dev/stderr" {
		_, err := fmt.Fprintln(stderr, text)
		return err
	}
	return logTo(c.Log, logLine(c.LogFormat, "warning", text, now))
}

// logLine returns an entry in runc's two formats.
func logLine(format, level, text string, now time.Time) string {
	stamp := now.Format(time.RFC3339)
	if format != "json" {
		return "time=" + strconv.Quote(stamp) + " level=" + level + " msg=" + strconv.Quote(text) + "\n"
	}
	line, _ := json.Marshal(struct {
		Level string `json:"level"`
		Msg   string `json:"msg"`
		Time  string `json:"time"`
	}{level, text, stamp}) // strings do not fail
	return string(line) + "\n"
}

// logTo appends to a file or a pipe.
func logTo(path, line string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, line)
	return errors.Join(err, f.Close())
}
