// Package setup tests that the set-up of the tests (test/setup.sh) takes nothing from a machine. No package imports it.
package setup
