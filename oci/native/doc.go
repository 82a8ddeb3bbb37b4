// Package native has the driver's own limits of memory (driver 615, control groups of version 2): [Main] is the hook that
// sets them before a container's program runs, and [Probe] checks that the driver keeps them.
package native
