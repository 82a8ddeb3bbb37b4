package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
	"github.com/gpuslice/gpuslice/monitor/view"
)

func describeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "describe",
		Short: "Show all that is known of a GPU or a container",
		Long: `Shows all that is known of one GPU, or of one container, of this node or of the
cluster.

Exit status: 0 it is shown; 1 there is none of that name, or nothing could be
read; 2 the call is wrong.`,
	}
	c.AddCommand(describeGPUCommand(), describeContainerCommand())
	return parent(c)
}

// facts are lines of a name and a value, the values one below the other.
type facts struct {
	page
	lines  [][2]string
	indent string
}

// add adds a line; none of an empty value.
func (f *facts) add(name, format string, args ...any) {
	if value := fmt.Sprintf(format, args...); value != "" {
		f.lines = append(f.lines, [2]string{name, value})
	}
}

// write writes the lines, and forgets them. Values may be painted: they are cleaned by
// who adds them.
func (f *facts) write() error {
	widest := 0
	for _, l := range f.lines {
		widest = max(widest, len(l[0]))
	}
	for _, l := range f.lines {
		head := f.indent + l[0] + ":" + strings.Repeat(" ", widest-len(l[0])+2)
		if _, err := fmt.Fprintln(f, f.Paint(term.Bold, head)+l[1]); err != nil {
			return err
		}
	}
	f.lines = nil
	return nil
}

// part is how much of something is granted, or in use.
func (f *facts) part(part, whole float64, text string) string {
	if whole <= 0 {
		return text
	}
	return f.Bar(24, part/whole, fmt.Sprintf("%.0f%%", min(100*part/whole, 999))) + "  " + text
}

// findContainer is the one that a person names: its id or the beginning of it, its name,
// NAMESPACE/POD where that has one, NAMESPACE/POD/CONTAINER or NAMESPACE/POD:CONTAINER.
func findContainer(all []view.Container, target string) (view.Container, error) {
	var found []view.Container
	for _, c := range all {
		if c.ContainerID == target {
			return c, nil
		}
		if isNamed(c, target) {
			found = append(found, c)
		}
	}
	switch len(found) {
	case 0:
		return view.Container{}, fmt.Errorf("no container with a share is called %q here, nor does the id of one begin so: gpuslice status -o wide lists them", term.Clean(target))
	case 1:
		return found[0], nil
	}
	var names []string
	for _, c := range found {
		names = append(names, term.Clean(fullName(c)+" ("+c.ContainerID+")"))
	}
	slices.Sort(names)
	return view.Container{}, fmt.Errorf("%q is %d containers: %s: name one by its id", term.Clean(target), len(found), strings.Join(names, ", "))
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

// fullName is NAMESPACE/POD/CONTAINER, or what there is of it.
func fullName(c view.Container) string {
	if c.Pod == "" {
		return name(c)
	}
	return c.Pod + "/" + c.Name
}

// problemsOf are a node's problems that name one of the things.
func problemsOf(n view.Node, ids ...string) (found []string) {
	for _, text := range n.Problems {
		if slices.ContainsFunc(ids, func(id string) bool { return id != "" && strings.Contains(text, id) }) {
			found = append(found, text)
		}
	}
	return found
}
