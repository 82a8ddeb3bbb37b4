package doctor

import (
	"fmt"
	"io"

	"github.com/gpuslice/gpuslice/cmd/internal/term"
)

var stateColors = map[State]term.Color{OK: term.Green, Warn: term.Yellow, Fail: term.Red}

func (r Report) Print(out io.Writer, style term.Style) error {
	for _, c := range r.Results {
		state := style.Paint(stateColors[c.State], fmt.Sprintf("%-4s", c.State))
		if _, err := fmt.Fprintf(out, "%s  %-16s  %s\n", state, c.Check, term.Clean(c.Found)); err != nil {
			return err
		}
		for i, line := range c.Fix {
			label := "      "
			if i == 0 {
				label = style.Paint(term.Bold, "  fix:")
			}
			if _, err := fmt.Fprintf(out, "%s %s\n", label, term.Clean(line)); err != nil {
				return err
			}
		}
	}
	_, err := fmt.Fprintf(out, "\n%d checks: %d ok, %d warn, %d fail\n", len(r.Results), r.Count(OK), r.Count(Warn), r.Count(Fail))
	return err
}
