package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/cluster"
	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/monitor/view"
)

func describeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "describe",
		Short: "Show the details of a GPU or a container",
		Long: `Shows the details of a GPU or a container, of this node or of the cluster.

Exit status: 0 success; 1 not found, or nothing could be read; 2 invalid usage.`,
	}
	c.AddCommand(describeGPUCommand(), describeContainerCommand())
	return parent(c)
}

type facts struct {
	page
	lines  [][2]string
	indent string
}

func (f *facts) add(name, format string, args ...any) {
	for i, arg := range args {
		if text, is := arg.(string); is {
			args[i] = term.Clean(text)
		}
	}
	if value := fmt.Sprintf(format, args...); value != "" {
		f.lines = append(f.lines, [2]string{name, value})
	}
}

// painted is a clean text with colors, which add does not clean.
type painted string

// write writes the lines and removes them.
func (f *facts) write() error {
	w := tabwriter.NewWriter(f, 0, 0, 2, ' ', 0)
	for _, l := range f.lines {
		fmt.Fprintf(w, "%s\t%s\n", f.Paint(term.Bold, f.indent+l[0]+":"), l[1])
	}
	f.lines = nil
	return w.Flush()
}

func (f *facts) part(part, whole float64, text string) painted {
	if whole <= 0 {
		return painted(text)
	}
	return painted(f.Bar(24, part/whole, fmt.Sprintf("%.0f%%", min(100*part/whole, 999))) + "  " + text)
}

// findContainer finds a container by its ID, a prefix of it, its name, NAMESPACE/POD, NAMESPACE/POD/CONTAINER or
// NAMESPACE/POD:CONTAINER.
func findContainer(all []view.Container, target string) (view.Container, error) {
	var found []string
	byName := map[string]view.Container{}
	for _, c := range all {
		if c.ContainerID == target {
			return c, nil
		}
		if isNamed(c, target) {
			name := term.Clean(c.ContainerID + " (" + fullName(c) + ")")
			found, byName[name] = append(found, name), c
		}
	}
	name, err := cluster.One("container", term.Clean(target), found, "gpuslice status -o wide")
	return byName[name], err
}

func isNamed(c view.Container, target string) bool {
	if target == "" {
		return false
	}
	if c.Pod != "" && (c.Pod == target || c.Pod+"/"+c.Name == target || c.Pod+":"+c.Name == target) {
		return true
	}
	return c.Name == target || strings.HasPrefix(c.ContainerID, target)
}

func fullName(c view.Container) string {
	if c.Pod == "" {
		return name(c)
	}
	return c.Pod + "/" + c.Name
}

func problemsOf(n view.Node, ids ...string) (found []string) {
	for _, text := range n.Problems {
		if slices.ContainsFunc(ids, func(id string) bool { return id != "" && strings.Contains(text, id) }) {
			found = append(found, text)
		}
	}
	return found
}
