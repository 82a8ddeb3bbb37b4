package monitoring

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
)

// server is a Prometheus that has scraped the sample's agent, schedulers and webhook for half an hour, by the
// chart's monitors, and has the recording rules.
type server struct {
	t      *testing.T
	engine *promql.Engine
	store  store
	parser parser.Parser
	rules  []rulefmt.Rule
}

func newServer(t *testing.T) *server {
	s := &server{t: t, parser: parser.NewParser(parser.Options{})}
	s.engine = promql.NewEngine(promql.EngineOpts{MaxSamples: 1 << 20, Timeout: time.Minute, Parser: s.parser})
	t.Cleanup(func() { require.NoError(t, s.engine.Close()) })
	s.store.scrapeAll(t)
	groups, errs := rulefmt.Parse(shipped(t, "rules.yaml"), false, model.UTF8Validation, s.parser, slog.New(slog.DiscardHandler))
	require.Empty(t, errs)
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			s.rules = append(s.rules, r)
			if r.Record == "" {
				continue
			}
			recorded, err := s.at(r.Expr)
			require.NoError(t, err)
			require.NotEmpty(t, recorded, "%s records nothing", r.Record)
			for _, sample := range recorded {
				s.store = append(s.store, constant{labels.NewBuilder(sample.Metric).Set(model.MetricNameLabel, r.Record).Labels(), sample.F})
			}
		}
	}
	return s
}

// at is what an expression gives at the end of the half hour.
func (s *server) at(expr string) (promql.Vector, error) {
	query, err := s.engine.NewInstantQuery(context.Background(), &s.store, nil, expr, time.Unix(0, 0).Add(minutes*time.Minute))
	if err != nil {
		return nil, err
	}
	defer query.Close()
	result := query.Exec(context.Background())
	if result.Err != nil {
		return nil, result.Err
	}
	vector, err := result.Vector()
	return slices.Clone(vector), err
}

// variables are what Grafana puts in place of ours.
var variables = strings.NewReplacer("$node", ".*", "$namespace", ".*", "$__rate_interval", "5m")

// check is what is wrong with an expression: that it can't be read, that something it goes by (a
// metric with these labels, a label to sum by) is not exported, or that there is nothing to be seen.
func (s *server) check(expr string) (wrong []string) {
	expr = variables.Replace(expr)
	if strings.Contains(expr, "$") {
		return []string{expr + ": there is a variable that this test doesn't know"}
	}
	parsed, err := s.parser.ParseExpr(expr)
	if err != nil {
		return []string{err.Error()}
	}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			plain := *n
			plain.OriginalOffset, plain.Offset = 0, 0
			if found, err := s.at(plain.String()); err != nil || len(found) == 0 {
				wrong = append(wrong, fmt.Sprintf("%s is not exported (%v)", plain.String(), err))
			}
		case *parser.AggregateExpr:
			wrong = append(wrong, s.lacks(n.Expr, n.Grouping)...)
		}
		return nil
	})
	return wrong
}

// lacks are those of the labels that nothing has of what the expression gives.
func (s *server) lacks(expr parser.Expr, names []string) (wrong []string) {
	var found promql.Vector
	for _, part := range unconditional(expr) {
		more, err := s.at(part.String())
		if err != nil {
			return []string{err.Error()}
		}
		found = append(found, more...)
	}
	for _, name := range names {
		if !slices.ContainsFunc(found, func(sample promql.Sample) bool { return sample.Metric.Has(name) }) {
			wrong = append(wrong, fmt.Sprintf("%s has no label %s", expr, name))
		}
	}
	return wrong
}

// unconditional are the parts of an expression that are joined by "or", without what they are
// compared with and what must exist or not: its result when there is something to report.
func unconditional(expr parser.Expr) []parser.Expr {
	switch e := expr.(type) {
	case *parser.ParenExpr:
		return unconditional(e.Expr)
	case *parser.BinaryExpr:
		switch {
		case e.Op == parser.LOR:
			return append(unconditional(e.LHS), unconditional(e.RHS)...)
		case e.Op == parser.LAND, e.Op == parser.LUNLESS, e.Op.IsComparisonOperator():
			return unconditional(e.LHS)
		}
	case *parser.AggregateExpr:
		var parts []parser.Expr
		for _, inner := range unconditional(e.Expr) {
			part := *e
			part.Expr = inner
			parts = append(parts, &part)
		}
		return parts
	}
	return []parser.Expr{expr}
}

// shown returns what is wrong with an expression of a panel that shows these labels.
func (s *server) shown(expr string, names []string) []string {
	if wrong := s.check(expr); len(wrong) > 0 {
		return wrong
	}
	expr = variables.Replace(expr)
	if found, err := s.at(expr); err != nil || len(found) == 0 {
		return []string{fmt.Sprintf("%s shows nothing (%v)", expr, err)}
	}
	parsed, err := s.parser.ParseExpr(expr)
	require.NoError(s.t, err)
	return s.lacks(parsed, names)
}

var template = regexp.MustCompile(`\{\{ *(?:\$labels\.)?(\w+) *\}\}`)

// mentioned are the labels that a legend or an annotation names.
func mentioned(text string) (names []string) {
	for _, m := range template.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	return names
}
