package monitoring

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// minutes is how long ago the store begins, at time 0.
const minutes = 30

// store is a storage.Queryable of series of which each has had the same number for half an hour,
// once a minute.
type store []constant

type constant struct {
	labels.Labels
	value float64
}

// Querier implements storage.Queryable.
func (s *store) Querier(int64, int64) (storage.Querier, error) { return querier{*s}, nil }

type querier struct{ all store }

// Select implements storage.Querier.
func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	set := &set{at: -1}
	for _, c := range q.all {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(c.Get(m.Name)) }) {
			set.series = append(set.series, storage.NewListSeries(c.Labels, c.samples()))
		}
	}
	slices.SortFunc(set.series, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
	return set
}

// LabelValues implements storage.LabelQuerier. No expression asks for them.
func (querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

// LabelNames implements storage.LabelQuerier. No expression asks for them.
func (querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

// Close implements storage.Querier.
func (querier) Close() error { return nil }

func (c constant) samples() (all []chunks.Sample) {
	for minute := range minutes + 1 {
		all = append(all, reading{int64(minute) * time.Minute.Milliseconds(), c.value})
	}
	return all
}

// reading is a chunks.Sample.
type reading struct {
	at    int64
	value float64
}

func (r reading) T() int64                      { return r.at }
func (r reading) ST() int64                     { return 0 }
func (r reading) F() float64                    { return r.value }
func (r reading) H() *histogram.Histogram       { return nil }
func (r reading) FH() *histogram.FloatHistogram { return nil }
func (r reading) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (r reading) Copy() chunks.Sample           { return r }

// set is a storage.SeriesSet.
type set struct {
	series []storage.Series
	at     int
}

func (s *set) Next() bool                        { s.at++; return s.at < len(s.series) }
func (s *set) At() storage.Series                { return s.series[s.at] }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }
