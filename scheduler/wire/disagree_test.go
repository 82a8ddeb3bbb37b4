package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAnnotationsThatDisagree: one of the two is left over, and the node is used by ours.
func TestAnnotationsThatDisagree(t *testing.T) {
	second := `{"id":"` + cardB + `"`
	for _, test := range []struct{ name, hami, want string }{
		{"the same, and other words", strings.ReplaceAll(hamiJSON, `"numa":1`, `"numa":0`), ""},
		{"older and the same", hami9, ""},
		{"not healthy", hami7, ""},
		{"another card", strings.Replace(hamiJSON, second, `{"id":"`+cardC+`"`, 1), "card " + cardB + " is in the first alone"},
		{"one more", strings.Replace(hamiJSON, `]`, `,{"id":"`+cardC+`"}]`, 1), `card "` + cardC + `" is in the second alone`},
		{"less memory", strings.Replace(hamiJSON, `32768`, `16384`, 1), "card " + cardA + " has 32768 MiB in the first, and 16384 in the second"},
		{"not to be read", "nonsense", "annotation " + AnnotationRegister + `: "nonsense": is neither JSON`},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := node(AnnotationCards, ours, AnnotationRegister, test.hami)
			inventory, err := DecodeNode(n)
			require.NoError(t, err)
			require.Len(t, inventory.Cards, 2)
			require.EqualValues(t, 32768, inventory.Cards[0].MemoryMiB)
			if test.want == "" {
				require.NoError(t, PassedOver(n))
				return
			}
			require.ErrorContains(t, PassedOver(n), test.want)
		})
	}
}
