package term

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// typed are the keys of what a terminal sends, and what is left of it.
func typed(sent string) (keys []Key, rest string) {
	for len(sent) > 0 {
		key, size, whole := nextKey([]byte(sent))
		if !whole {
			break
		}
		if key != "" {
			keys = append(keys, key)
		}
		sent = sent[size:]
	}
	return keys, sent
}

func TestKeys(t *testing.T) {
	for _, test := range []struct {
		sent string
		want []Key
		rest string
	}{
		{"q/aé卡", []Key{"q", "/", "a", "é", "卡"}, ""},
		{"\x1b[A\x1b[B\x1bOC\x1b[D", []Key{KeyUp, KeyDown, KeyRight, KeyLeft}, ""},
		{"\x1b[5~\x1b[6~\x1b[H\x1b[F\x1b[1~\x1b[4~", []Key{KeyPageUp, KeyPageDown, KeyHome, KeyEnd, KeyHome, KeyEnd}, ""},
		{"\r\x7f\x08\x03\x1a\x0c\x15", []Key{KeyEnter, KeyBackspace, KeyBackspace, KeyInterrupt, KeySuspend, KeyRedraw, KeyErase}, ""},
		{"\x1b", nil, "\x1b"},
		{"\x1b[", nil, "\x1b["},
		{"\x1b[1;5", nil, "\x1b[1;5"},
		{"\x1b[1;5Cx", []Key{"x"}, ""}, // Ctrl-Right is not told
		{"\x1bq", []Key{KeyEscape, "q"}, ""},
		{"\x1b\x1b[A", []Key{KeyEscape, KeyUp}, ""},
		{"\x00\x01x", []Key{"x"}, ""},
		{"\xff\xfex", []Key{"x"}, ""},
		{"\xe5\x8d", nil, "\xe5\x8d"},
	} {
		keys, rest := typed(test.sent)
		assert.Equal(t, test.want, keys, "%q", test.sent)
		assert.Equal(t, test.rest, rest, "%q", test.sent)
	}
}

// Whatever is sent, each step takes something, or waits for more: of a sequence, for a
// few bytes only.
func TestKeysOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sent := rapid.SliceOfN(rapid.SampledFrom([]byte("\x1b[O0;~AZz\r\xe5\xff\x00")), 1, 60).Draw(t, "sent")
		for len(sent) > 0 {
			_, size, whole := nextKey(sent)
			if !whole {
				if len(sent) > 24 {
					t.Fatalf("%q is waited for", sent)
				}
				return
			}
			if size < 1 || size > len(sent) {
				t.Fatalf("%d of %q", size, sent)
			}
			sent = sent[size:]
		}
	})
}
