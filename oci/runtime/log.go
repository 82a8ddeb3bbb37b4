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

// report writes an error to stderr and to --log, from which engines show it.
func report(stderr io.Writer, c Call, problem error, now time.Time) error {
	text := "gpuslice: " + problem.Error()
	_, err := fmt.Fprintln(stderr, text)
	if c.Log == "" || c.Log == "/dev/stderr" {
		return err
	}
	return errors.Join(err, logTo(c.Log, logLine(c.LogFormat, "error", text, now)))
}

// warn writes a warning to --log. It avoids stderr, which is the container's too.
func warn(stderr io.Writer, c Call, warning string, now time.Time) error {
	text := "gpuslice: " + warning
	if c.Log == "" || c.Log == "/dev/stderr" {
		_, err := fmt.Fprintln(stderr, text)
		return err
	}
	return logTo(c.Log, logLine(c.LogFormat, "warning", text, now))
}

func logLine(format, level, text string, now time.Time) string {
	stamp := now.Format(time.RFC3339)
	if format != "json" {
		return "time=" + strconv.Quote(stamp) + " level=" + level + " msg=" + strconv.Quote(text) + "\n"
	}
	line, _ := json.Marshal(struct {
		Level string `json:"level"`
		Msg   string `json:"msg"`
		Time  string `json:"time"`
	}{level, text, stamp})
	return string(line) + "\n"
}

func logTo(path, line string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, line)
	return errors.Join(err, f.Close())
}
