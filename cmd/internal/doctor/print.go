package doctor

import (
	"fmt"
	"io"
)

// Print prints a report for people.
func (r Report) Print(out io.Writer) error {
	for _, c := range r.Results {
		if _, err := fmt.Fprintf(out, "%-4s  %-16s  %s\n", c.State, c.Check, c.Found); err != nil {
			return err
		}
		for i, line := range c.Fix {
			label := "      "
			if i == 0 {
				label = "  fix:"
			}
			if _, err := fmt.Fprintf(out, "%s %s\n", label, line); err != nil {
				return err
			}
		}
	}
	_, err := fmt.Fprintf(out, "\n%d checks: %d ok, %d warn, %d fail\n", len(r.Results), r.Count(OK), r.Count(Warn), r.Count(Fail))
	return err
}
