package main

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strconv"
)

type checks struct{ errs []error }

func (c *checks) want(flag string, ok bool, want string, got any) {
	if !ok {
		c.errs = append(c.errs, fmt.Errorf("--%s: must be %s, not %q", flag, want, fmt.Sprint(got)))
	}
}

func (c *checks) absolute(flag string, paths ...string) {
	for _, path := range paths {
		c.want(flag, filepath.IsAbs(path), "an absolute path", path)
	}
}

func (c *checks) matches(flag string, pattern *regexp.Regexp, want string, values ...string) {
	for _, value := range values {
		c.want(flag, pattern.MatchString(value), want, value)
	}
}

func isAddress(text string) bool {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}
