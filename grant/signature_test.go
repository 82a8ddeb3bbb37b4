package grant_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/grant"
)

// Two keys, as their bytes.
var (
	secretOne = []byte("0123456789abcdefghijklmnopqrstuv")
	secretTwo = []byte("vutsrqponmlkjihgfedcba9876543210+more")
)

const (
	signedPayload = `{"version":1,"node":"node-1","containers":{"main":[{"uuid":"` + cardA + `","memoryMiB":8000,"cores":30}]}}`
	// signedOne is its signature with secretOne for pod u-1 on node-1, made by
	// Python's hmac module from what AnnotationSignature's documentation says.
	signedOne = "v1:cd8e595edd4e81e5:9a44aa386ea1bccb1bb0ed9926f2d3c24fba9ea829ea72dfad52b057706b7395"
)

func parseKey(t testing.TB, secret []byte) grant.Key {
	key, err := grant.ParseKey(hex.EncodeToString(secret))
	require.NoError(t, err)
	return key
}

func keyring(t testing.TB, secrets ...[]byte) grant.Keyring {
	text := ""
	for _, secret := range secrets {
		text += hex.EncodeToString(secret) + "\n"
	}
	ring, err := grant.ParseKeyring([]byte(text))
	require.NoError(t, err)
	return ring
}

func TestSignatureKnownAnswer(t *testing.T) {
	got, err := grant.Sign(parseKey(t, secretOne), "u-1", "node-1", signedPayload)
	require.NoError(t, err)
	assert.Equal(t, signedOne, got)
	require.NoError(t, keyring(t, secretOne).Verify("u-1", "node-1", signedPayload, signedOne))
}

func TestForgeries(t *testing.T) {
	const other = `{"version":1,"containers":{"main":[{"uuid":"` + cardB + `","memoryMiB":1,"cores":1}]}}`
	two := parseKey(t, secretTwo)
	byTwo, err := grant.Sign(two, "u-1", "node-1", signedPayload)
	require.NoError(t, err)
	mac := signedOne[strings.LastIndex(signedOne, ":")+1:]
	hami := map[string]string{grant.AnnotationToAllocate: cardA + ",NVIDIA,8000,30:;"}
	// with is the pod that was signed with some annotations changed; "" takes one away.
	with := func(changes ...string) map[string]string {
		annotations := map[string]string{grant.AnnotationGrant: signedPayload, grant.AnnotationSignature: signedOne}
		for i := 0; i < len(changes); i += 2 {
			if annotations[changes[i]] = changes[i+1]; changes[i+1] == "" {
				delete(annotations, changes[i])
			}
		}
		return annotations
	}
	signed := func(signature string) map[string]string { return with(grant.AnnotationSignature, signature) }
	tests := []struct {
		description string
		uid, node   string // "": those that were signed
		annotations map[string]string
		keys        [][]byte // none: both
		says        string
	}{
		{description: "another pod", uid: "u-2", annotations: with(), says: "not for this grant"},
		{description: "a longer pod UID", uid: "u-1n", annotations: with(), says: "not for this grant"},
		{description: "another node", node: "node-2", annotations: with(), says: "not for this grant"},
		{description: "bytes moved from the node to the pod UID", uid: "u-1node", node: "-1", annotations: with(), says: "not for this grant"},
		{description: "bytes moved from the payload to the node", node: "node-1{", annotations: with(grant.AnnotationGrant, signedPayload[1:]), says: "not for this grant"},
		{description: "a byte of the payload changed", annotations: with(grant.AnnotationGrant, strings.Replace(signedPayload, "8000", "9000", 1)), says: "not for this grant"},
		{description: "a space in the payload", annotations: with(grant.AnnotationGrant, signedPayload[:1]+" "+signedPayload[1:]), says: "not for this grant"},
		{description: "a space after the payload", annotations: with(grant.AnnotationGrant, signedPayload+" "), says: "not for this grant"},
		{description: "the payload cut short", annotations: with(grant.AnnotationGrant, signedPayload[:len(signedPayload)-1]), says: "not for this grant"},
		{description: "another payload", annotations: with(grant.AnnotationGrant, other), says: "not for this grant"},
		{description: "a payload that can't be read", annotations: with(grant.AnnotationGrant, "{"), says: "not for this grant"},
		{description: "a payload that is too long", annotations: with(grant.AnnotationGrant, strings.Repeat(" ", grant.MaxAnnotationBytes+1)), says: "can't be checked"},
		{description: "no signature", annotations: with(grant.AnnotationSignature, ""), says: "signed grants only"},
		{description: "an empty signature", annotations: map[string]string{grant.AnnotationGrant: signedPayload, grant.AnnotationSignature: ""}, says: "is not written as"},
		{description: "a MAC cut short", annotations: signed(signedOne[:len(signedOne)-1]), says: "is not written as"},
		{description: "half a MAC", annotations: signed(signedOne[:len(signedOne)-32]), says: "is not written as"},
		{description: "no MAC", annotations: signed(strings.TrimSuffix(signedOne, mac)), says: "is not written as"},
		{description: "a longer MAC", annotations: signed(signedOne + "00"), says: "is not written as"},
		{description: "one more field", annotations: signed(signedOne + ":"), says: "is not written as"},
		{description: "a MAC in capitals", annotations: signed(strings.TrimSuffix(signedOne, mac) + strings.ToUpper(mac)), says: "is not written as"},
		{description: "a space before it", annotations: signed(" " + signedOne), says: "is not written as"},
		{description: "a line end after it", annotations: signed(signedOne + "\n"), says: "is not written as"},
		{description: "another version", annotations: signed("v2" + signedOne[2:]), says: "is not written as"},
		{description: "no version", annotations: signed(signedOne[3:]), says: "is not written as"},
		{description: "a bit of the MAC changed", annotations: signed(signedOne[:len(signedOne)-1] + string(signedOne[len(signedOne)-1]^1)), says: "not for this grant"},
		{description: "a MAC of zeros", annotations: signed(strings.TrimSuffix(signedOne, mac) + strings.Repeat("0", 64)), says: "not for this grant"},
		{description: "a key that the node doesn't have", annotations: signed(byTwo), keys: [][]byte{secretOne}, says: "was made with key " + two.ID()},
		{description: "the other key's id with this key's MAC", annotations: signed("v1:" + two.ID() + ":" + mac), says: "not for this grant"},
		{description: "this key's id with the other key's MAC", annotations: signed(signedOne[:20] + byTwo[20:]), says: "not for this grant"},
		{description: "nobody's id", annotations: signed("v1:0000000000000000:" + mac), says: "was made with key 0000000000000000"},
		{description: "no pod UID", uid: "-", annotations: with(), says: "can't be checked"},
		{description: "HAMi's annotation", annotations: hami, says: "HAMi's annotations can't be signed"},
		{description: "HAMi's other annotation", annotations: map[string]string{grant.AnnotationAllocated: hami[grant.AnnotationToAllocate]}, says: "HAMi's annotations can't be signed"},
		{description: "HAMi's annotation with somebody's signature", annotations: with(grant.AnnotationGrant, "", grant.AnnotationToAllocate, hami[grant.AnnotationToAllocate]), says: "HAMi's annotations can't be signed"},
		{description: "the signed payload under HAMi's name", annotations: with(grant.AnnotationGrant, "", grant.AnnotationToAllocate, signedPayload), says: grant.AnnotationToAllocate},
		{description: "grant and signature swapped", annotations: with(grant.AnnotationGrant, signedOne, grant.AnnotationSignature, signedPayload), says: "is not written as"},
	}
	for _, test := range tests {
		t.Run(test.description, func(t *testing.T) {
			pod := grant.Pod{UID: "u-1", Namespace: "ns", Name: "name", Annotations: test.annotations}
			node := "node-1"
			if test.uid != "" {
				pod.UID = strings.TrimPrefix(test.uid, "-")
			}
			if test.node != "" {
				node = test.node
			}
			if test.keys == nil {
				test.keys = [][]byte{secretOne, secretTwo}
			}
			err := grant.Authenticate(pod, "main", node, keyring(t, test.keys...))
			require.Error(t, err)
			if test.says != grant.AnnotationToAllocate { // there the annotation itself is malformed
				require.ErrorIs(t, err, grant.ErrSignature)
			}
			for _, part := range []string{"pod ns/name", `container "main"`, test.says} {
				assert.Contains(t, err.Error(), part)
			}
			assert.NotContains(t, err.Error(), mac[:16])
			assert.NotContains(t, err.Error(), byTwo[20:36])
			for _, secret := range [][]byte{secretOne, secretTwo} {
				assert.NotContains(t, err.Error(), string(secret[:8]))
				assert.NotContains(t, err.Error(), hex.EncodeToString(secret[:8]))
			}
		})
	}
}

func TestAuthenticateAccepts(t *testing.T) {
	ring := keyring(t, secretOne)
	for _, test := range []struct {
		description string
		annotations map[string]string
	}{
		{"what was signed", map[string]string{grant.AnnotationGrant: signedPayload, grant.AnnotationSignature: signedOne}},
		{"HAMi's annotations beside it are not read", map[string]string{
			grant.AnnotationGrant: signedPayload, grant.AnnotationSignature: signedOne, grant.AnnotationToAllocate: cardB + ",NVIDIA,1,1:;"}},
		{"no annotation", nil},
		{"a signature of nothing", map[string]string{grant.AnnotationSignature: "x"}},
		{"HAMi's annotation that grants nothing", map[string]string{grant.AnnotationToAllocate: ";;"}},
	} {
		pod := grant.Pod{UID: "u-1", Annotations: test.annotations}
		assert.NoError(t, grant.Authenticate(pod, "main", "node-1", ring), test.description)
	}
}

// Keys change in three steps, and nothing that is signed with the scheduler's key of
// the moment is refused: the nodes learn the new one, the scheduler takes it, the
// nodes forget the old one.
func TestKeyRotation(t *testing.T) {
	oldKey, newKey := keyring(t, secretOne).Current(), keyring(t, secretTwo, secretOne).Current()
	byOld, err := grant.Sign(oldKey, "u-1", "node-1", signedPayload)
	require.NoError(t, err)
	byNew, err := grant.Sign(newKey, "u-1", "node-1", signedPayload)
	require.NoError(t, err)
	for _, test := range []struct {
		description    string
		node           grant.Keyring
		oldOK, newOK   bool
		currentIsTheID string
	}{
		{"before", keyring(t, secretOne), true, false, oldKey.ID()},
		{"the new one as the second", keyring(t, secretOne, secretTwo), true, true, oldKey.ID()},
		{"the new one as the first", keyring(t, secretTwo, secretOne), true, true, newKey.ID()},
		{"after", keyring(t, secretTwo), false, true, newKey.ID()},
		{"no keys at all", grant.Keyring{}, false, false, ""},
	} {
		t.Run(test.description, func(t *testing.T) {
			assert.Equal(t, test.oldOK, test.node.Verify("u-1", "node-1", signedPayload, byOld) == nil)
			assert.Equal(t, test.newOK, test.node.Verify("u-1", "node-1", signedPayload, byNew) == nil)
			assert.Equal(t, test.currentIsTheID, test.node.Current().ID())
		})
	}
}

func TestSignRefuses(t *testing.T) {
	key := parseKey(t, secretOne)
	for _, test := range []struct {
		description        string
		key                grant.Key
		uid, node, payload string
	}{
		{"an empty key", grant.Key{}, "u", "n", "p"},
		{"no pod UID", key, "", "n", "p"},
		{"no node", key, "u", "", "p"},
		{"no payload", key, "u", "n", ""},
		{"a payload that nobody reads", key, "u", "n", strings.Repeat(" ", grant.MaxAnnotationBytes+1)},
	} {
		signature, err := grant.Sign(test.key, test.uid, test.node, test.payload)
		require.Error(t, err, test.description)
		assert.Empty(t, signature, test.description)
	}
}

func TestParseKeyring(t *testing.T) {
	one, two := hex.EncodeToString(secretOne), base64.StdEncoding.EncodeToString(secretTwo)
	for _, test := range []struct {
		description, text string
		keys              int
		says              string
	}{
		{"hexadecimal", one, 1, ""},
		{"hexadecimal in capitals", strings.ToUpper(one), 1, ""},
		{"base64", two + "\n", 1, ""},
		{"two, comments, blanks, spaces, DOS line ends", "# current\r\n\n  " + one + "\t\r\n#previous\n" + two + "\r\n", 2, ""},
		{"empty", "", 0, "no key"},
		{"comments only", "# none\n\n", 0, "no key"},
		{"31 bytes", one[:62], 0, "line 1: a key has 31 bytes"},
		{"1025 bytes", strings.Repeat("0a", 1025), 0, "1025 bytes"},
		{"a digit missing", one[:63], 0, "neither"},
		{"base64 without its padding", strings.TrimRight(two, "="), 0, "neither"},
		{"something else", "correct horse battery staple", 0, "neither"},
		{"a comment after the key", one + " # mine", 0, "neither"},
		{"zeros", strings.Repeat("00", 32), 0, "one byte again and again"},
		{"twice the same", one + "\n" + strings.ToUpper(one), 0, "line 2: the key is there twice"},
		{"the same in both ways to write it", one + "\n" + base64.StdEncoding.EncodeToString(secretOne), 0, "line 2: the key is there twice"},
		{"three", one + "\n" + two + "\n" + strings.Repeat("0123", 16), 0, "line 3: more than 2 keys"},
		{"a good one and a bad one", one + "\n" + two[:8], 0, "line 2"},
	} {
		t.Run(test.description, func(t *testing.T) {
			ring, err := grant.ParseKeyring([]byte(test.text))
			if test.says == "" {
				require.NoError(t, err)
				assert.NotEmpty(t, ring.Current().ID())
				assert.Equal(t, test.keys, strings.Count(fmt.Sprint(ring), "grant key "))
				return
			}
			require.ErrorContains(t, err, test.says)
			assert.NotContains(t, err.Error(), one[:8])
			assert.NotContains(t, err.Error(), two[:8])
			assert.Empty(t, ring.Current().ID())
		})
	}
}

// However a key is printed, nothing of the secret comes out.
func TestKeysAreNotPrinted(t *testing.T) {
	key, ring := parseKey(t, secretOne), keyring(t, secretOne, secretTwo)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		for _, value := range []any{key, &key, ring, &ring, []grant.Key{key}} {
			text := fmt.Sprintf(verb, value)
			assert.Contains(t, text, "grant key "+key.ID(), "%s %T", verb, value)
			hidden := struct{ value any }{value}
			text += fmt.Sprintf(verb, hidden) + fmt.Sprintf(verb, struct{ key grant.Key }{key})
			for _, secret := range []string{"01234567", hex.EncodeToString(secretOne[:4]), "48 49 50", "0x30, 0x31"} {
				assert.NotContains(t, text, secret, "%s %T", verb, value)
			}
		}
	}
}

// FuzzVerify: no signature panics, one form only is accepted, and what is refused
// is not repeated.
func FuzzVerify(f *testing.F) {
	for _, seed := range []string{signedOne, "", "v1", "v1::", signedOne + ":", strings.ToUpper(signedOne), "v1:0000000000000000:" + strings.Repeat("0", 64)} {
		f.Add(seed)
	}
	ring := keyring(f, secretOne, secretTwo)
	f.Fuzz(func(t *testing.T, value string) {
		err := ring.Verify("u-1", "node-1", signedPayload, value)
		if value == signedOne {
			require.NoError(t, err)
			return
		}
		if err == nil { // else only the other key can have made it
			require.Contains(t, value, parseKey(t, secretTwo).ID())
			return
		}
		require.ErrorIs(t, err, grant.ErrSignature)
		require.Less(t, len(err.Error()), 400)
	})
}
