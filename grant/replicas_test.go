package grant_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
)

// replicaCards are cards that don't divide evenly.
func replicaCards() map[string]grant.Card {
	return map[string]grant.Card{
		cardA: {UUID: cardA, MemoryMiB: 81_559, CorePercent: 100, Slots: 10},
		cardB: {UUID: cardB, MemoryMiB: 40_960, CorePercent: 250, Slots: 3},  // scaled
		cardC: {UUID: cardC, MemoryMiB: 1_000, CorePercent: 100, Slots: 101}, // too many
	}
}

func TestFromReplicas(t *testing.T) {
	one := cardA + "::0"
	whole := strings.Repeat(cardA+"::%d,", 10)
	whole = fmt.Sprintf(strings.TrimSuffix(whole, ","), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	for _, test := range []struct {
		description string
		value       string
		pod         map[string]string
		want        []grant.Share
		kind        error
		says        string
	}{
		{description: "one, rounded down", value: one, want: []grant.Share{{cardA, 8155, 10}}},
		{description: "the last", value: cardA + "::9", want: []grant.Share{{cardA, 8155, 10}}},
		{description: "two of a card add up", value: cardA + "::3," + cardA + "::7", want: []grant.Share{{cardA, 16310, 20}}},
		{description: "the whole card", value: whole, want: []grant.Share{{cardA, 81550, 100}}},
		{description: "two cards, in this order", value: cardB + "::0," + one, want: []grant.Share{{cardB, 13653, 83}, {cardA, 8155, 10}}},
		{description: "no more compute time than a card has", value: cardB + "::0," + cardB + "::1", want: []grant.Share{{cardB, 27306, 100}}},
		{description: "others' annotations on the pod", value: one, pod: map[string]string{"hami.io/vgpu-time": "1"}, want: []grant.Share{{cardA, 8155, 10}}},

		{description: "a grant for another container", value: one, pod: map[string]string{grant.AnnotationGrant: "{}"}},
		{description: "a signature alone", value: one, pod: map[string]string{grant.AnnotationSignature: ""}},
		{description: "HAMi's empty slots", value: one, pod: map[string]string{grant.AnnotationToAllocate: ";;"}},
		{description: "HAMi's erased annotation", value: one, pod: map[string]string{grant.AnnotationAllocated: ""}},
		{description: "HAMi's node", value: one, pod: map[string]string{grant.AnnotationNode: "node-1"}},

		{description: "on the pod too", value: one, pod: map[string]string{grant.AnnotationReplicas: one}, kind: grant.ErrMalformed, says: "is on the pod"},
		{description: "empty", value: "", kind: grant.ErrMalformed, says: `replica ""`},
		{description: "an empty one behind", value: one + ",", kind: grant.ErrMalformed, says: `replica ""`},
		{description: "a space", value: one + ", " + cardA + "::1", kind: grant.ErrMalformed, says: "must be <UUID>::<n>"},
		{description: "no number", value: cardA, kind: grant.ErrMalformed, says: "must be <UUID>::<n>"},
		{description: "an empty number", value: cardA + "::", kind: grant.ErrMalformed, says: "plain digits"},
		{description: "one that there is no longer", value: cardA + "::10", kind: grant.ErrUnknownCard, says: "10 replicas now, numbered from 0: delete the pod"},
		{description: "below zero", value: cardA + "::-1", kind: grant.ErrMalformed, says: "plain digits"},
		{description: "a second spelling", value: cardA + "::00", kind: grant.ErrMalformed, says: "plain digits"},
		{description: "a plus", value: cardA + "::+1", kind: grant.ErrMalformed, says: "plain digits"},
		{description: "more than an int", value: cardA + "::18446744073709551616", kind: grant.ErrMalformed, says: "plain digits"},
		{description: "one more part", value: one + "::0", kind: grant.ErrMalformed, says: "plain digits"},
		{description: "twice the same", value: one + "," + one, kind: grant.ErrMalformed, says: "there twice"},
		{description: "a card in capitals", value: strings.ToUpper(one), kind: grant.ErrMalformed, says: "must be <UUID>::<n>"},
		{description: "no card's name", value: "all::0", kind: grant.ErrMalformed, says: "must be <UUID>::<n>"},
		{description: "a card that isn't there", value: cardX + "::0", kind: grant.ErrUnknownCard, says: "no such card"},
		{description: "one good, one not there", value: one + "," + cardX + "::0", kind: grant.ErrUnknownCard, says: "no such card"},
		{description: "too little for each", value: cardC + "::0", kind: grant.ErrOverbooked, says: "nothing is left for one of 101 replicas"},
		{description: "too long", value: strings.Repeat("x", grant.MaxAnnotationBytes+1), kind: grant.ErrMalformed, says: "at most"},
		{description: "long nonsense", value: strings.Repeat("x", 10_000), kind: grant.ErrMalformed, says: "…"},
	} {
		t.Run(test.description, func(t *testing.T) {
			pod := grant.Pod{Namespace: "ns", Name: "name", Annotations: test.pod}
			got, err := grant.FromReplicas(pod, "main", map[string]string{grant.AnnotationReplicas: test.value}, replicaCards())
			if test.kind != nil {
				require.ErrorIs(t, err, test.kind)
				for _, part := range []string{"pod ns/name", `container "main"`, grant.AnnotationReplicas, test.says} {
					assert.Contains(t, err.Error(), part)
				}
				assert.Less(t, len(err.Error()), 500)
				return
			}
			require.NoError(t, err)
			if test.want == nil {
				assert.Nil(t, got)
				return
			}
			assert.Equal(t, &grant.Grant{Container: "main", Shares: test.want, Source: grant.SourceReplicas}, got)
		})
	}
	t.Run("none", func(t *testing.T) {
		got, err := grant.FromReplicas(grant.Pod{}, "main", nil, replicaCards())
		require.NoError(t, err)
		assert.Nil(t, got)
	})
	t.Run("a card that nobody may share", func(t *testing.T) {
		cards := map[string]grant.Card{cardA: {UUID: cardA, MemoryMiB: 1000, CorePercent: 100}}
		_, err := grant.FromReplicas(grant.Pod{}, "main", map[string]string{grant.AnnotationReplicas: one}, cards)
		require.ErrorIs(t, err, grant.ErrUnknownCard)
	})
}

// FuzzFromReplicas: no annotation panics, and what is accepted is valid and no more
// than the cards.
func FuzzFromReplicas(f *testing.F) {
	for _, seed := range []string{"", ",", "::", cardA + "::0", cardA + "::0," + cardB + "::2", cardA + "::0," + cardA + "::9"} {
		f.Add(seed)
	}
	cards := replicaCards()
	f.Fuzz(func(t *testing.T, value string) {
		got, err := grant.FromReplicas(grant.Pod{}, "main", map[string]string{grant.AnnotationReplicas: value}, cards)
		if err != nil {
			require.Nil(t, got)
			return
		}
		require.NoError(t, got.Validate())
		require.NoError(t, grant.CheckCards(got.Shares, cards))
	})
}
