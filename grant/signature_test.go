package grant_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/test/granttest"
)

const (
	signedPayload = `{"version":1,"node":"node-1","containers":{"main":[{"uuid":"` + gpuA + `","memoryMiB":8000,"cores":30}]}}`
	// signedOne is its signature with the key of the seed "one" for pod u-1 on node-1. openssl pkeyutl -sign
	// -rawin made it, from the documentation of AnnotationSignature.
	signedOne = "v1:5b30a97b14a044d2:020fd7ac24ad73495f0dcc2993b9dd8734b529351cbd1dc24c1de769e00bde111821ba13dda56eb08ae7ea447306fd6c200b06c3289b514189be6b2cf1da670e"
)

func TestSignatureKnownAnswer(t *testing.T) {
	got, err := granttest.SigningKey("one").Sign("u-1", "node-1", signedPayload)
	require.NoError(t, err)
	assert.Equal(t, signedOne, got)
	require.NoError(t, granttest.Keyring("one").Verify("u-1", "node-1", signedPayload, signedOne))
}

func TestForgeries(t *testing.T) {
	const other = `{"version":1,"containers":{"main":[{"uuid":"` + gpuB + `","memoryMiB":1,"cores":1}]}}`
	two := granttest.SigningKey("two")
	byTwo, err := two.Sign("u-1", "node-1", signedPayload)
	require.NoError(t, err)
	digits := signedOne[strings.LastIndex(signedOne, ":")+1:]
	hami := map[string]string{api.AnnotationHAMiToAllocate: gpuA + ",NVIDIA,8000,30:;"}
	// with is the pod that was signed with some annotations changed; "" takes one away.
	with := func(changes ...string) map[string]string {
		annotations := map[string]string{api.AnnotationGrant: signedPayload, api.AnnotationSignature: signedOne}
		for i := 0; i < len(changes); i += 2 {
			if annotations[changes[i]] = changes[i+1]; changes[i+1] == "" {
				delete(annotations, changes[i])
			}
		}
		return annotations
	}
	signed := func(signature string) map[string]string { return with(api.AnnotationSignature, signature) }
	tests := []struct {
		description string
		uid, node   string // "": those that were signed
		annotations map[string]string
		keys        []string // none: both
		says        string
	}{
		{description: "another pod", uid: "u-2", annotations: with(), says: "not for this grant"},
		{description: "a longer pod UID", uid: "u-1n", annotations: with(), says: "not for this grant"},
		{description: "another node", node: "node-2", annotations: with(), says: "not for this grant"},
		{description: "bytes moved from the node to the pod UID", uid: "u-1node", node: "-1", annotations: with(), says: "not for this grant"},
		{description: "bytes moved from the payload to the node", node: "node-1{", annotations: with(api.AnnotationGrant, signedPayload[1:]), says: "not for this grant"},
		{description: "a byte of the payload changed", annotations: with(api.AnnotationGrant, strings.Replace(signedPayload, "8000", "9000", 1)), says: "not for this grant"},
		{description: "a space in the payload", annotations: with(api.AnnotationGrant, signedPayload[:1]+" "+signedPayload[1:]), says: "not for this grant"},
		{description: "a space after the payload", annotations: with(api.AnnotationGrant, signedPayload+" "), says: "not for this grant"},
		{description: "the payload cut short", annotations: with(api.AnnotationGrant, signedPayload[:len(signedPayload)-1]), says: "not for this grant"},
		{description: "another payload", annotations: with(api.AnnotationGrant, other), says: "not for this grant"},
		{description: "a payload that can't be read", annotations: with(api.AnnotationGrant, "{"), says: "not for this grant"},
		{description: "a payload that is too long", annotations: with(api.AnnotationGrant, strings.Repeat(" ", grant.MaxAnnotationBytes+1)), says: "can't be checked"},
		{description: "no signature", annotations: with(api.AnnotationSignature, ""), says: "signed grants only"},
		{description: "an empty signature", annotations: map[string]string{api.AnnotationGrant: signedPayload, api.AnnotationSignature: ""}, says: "is not written as"},
		{description: "a signature cut short", annotations: signed(signedOne[:len(signedOne)-1]), says: "is not written as"},
		{description: "half a signature", annotations: signed(signedOne[:len(signedOne)-64]), says: "is not written as"},
		{description: "a key ID only", annotations: signed(strings.TrimSuffix(signedOne, digits)), says: "is not written as"},
		{description: "a longer signature", annotations: signed(signedOne + "00"), says: "is not written as"},
		{description: "one more field", annotations: signed(signedOne + ":"), says: "is not written as"},
		{description: "a signature in capitals", annotations: signed(strings.TrimSuffix(signedOne, digits) + strings.ToUpper(digits)), says: "is not written as"},
		{description: "a space before it", annotations: signed(" " + signedOne), says: "is not written as"},
		{description: "a line end after it", annotations: signed(signedOne + "\n"), says: "is not written as"},
		{description: "another version", annotations: signed("v2" + signedOne[2:]), says: "is not written as"},
		{description: "no version", annotations: signed(signedOne[3:]), says: "is not written as"},
		{description: "a bit of the signature changed", annotations: signed(signedOne[:len(signedOne)-1] + string(signedOne[len(signedOne)-1]^1)), says: "not for this grant"},
		{description: "a signature of zeros", annotations: signed(strings.TrimSuffix(signedOne, digits) + strings.Repeat("0", 128)), says: "not for this grant"},
		{description: "a key that the node doesn't have", annotations: signed(byTwo), keys: []string{"one"}, says: "was made with key " + two.ID()},
		{description: "the other key's id with this key's signature", annotations: signed("v1:" + two.ID() + ":" + digits), says: "not for this grant"},
		{description: "this key's id with the other key's signature", annotations: signed(signedOne[:20] + byTwo[20:]), says: "not for this grant"},
		{description: "an unknown ID", annotations: signed("v1:0000000000000000:" + digits), says: "was made with key 0000000000000000"},
		{description: "no pod UID", uid: "-", annotations: with(), says: "can't be checked"},
		{description: "HAMi's annotation", annotations: hami, says: "HAMi's annotations can't be signed"},
		{description: "HAMi's other annotation", annotations: map[string]string{api.AnnotationHAMiAllocated: hami[api.AnnotationHAMiToAllocate]}, says: "HAMi's annotations can't be signed"},
		{description: "HAMi's annotation with any signature", annotations: with(api.AnnotationGrant, "", api.AnnotationHAMiToAllocate, hami[api.AnnotationHAMiToAllocate]), says: "HAMi's annotations can't be signed"},
		{description: "the signed payload under HAMi's name", annotations: with(api.AnnotationGrant, "", api.AnnotationHAMiToAllocate, signedPayload), says: api.AnnotationHAMiToAllocate},
		{description: "grant and signature swapped", annotations: with(api.AnnotationGrant, signedOne, api.AnnotationSignature, signedPayload), says: "is not written as"},
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
				test.keys = []string{"one", "two"}
			}
			_, err := grant.FromPod(t.Context(), pod, "main", node, nil, granttest.Keyring(test.keys...))
			require.Error(t, err)
			if test.says != api.AnnotationHAMiToAllocate { // there the annotation itself is malformed
				require.ErrorIs(t, err, grant.ErrSignature)
			}
			for _, part := range []string{"pod ns/name", `container "main"`, test.says} {
				assert.Contains(t, err.Error(), part)
			}
		})
	}
}

func TestSignedGrantsAreAccepted(t *testing.T) {
	ring := granttest.Keyring("one")
	for _, test := range []struct {
		description string
		annotations map[string]string
	}{
		{"what was signed", map[string]string{api.AnnotationGrant: signedPayload, api.AnnotationSignature: signedOne}},
		{"HAMi's annotations beside it are not read", map[string]string{
			api.AnnotationGrant: signedPayload, api.AnnotationSignature: signedOne, api.AnnotationHAMiToAllocate: gpuB + ",NVIDIA,1,1:;"}},
		{"no annotation", nil},
		{"a signature of nothing", map[string]string{api.AnnotationSignature: "x"}},
		{"HAMi's annotation that grants nothing", map[string]string{api.AnnotationHAMiToAllocate: ";;"}},
	} {
		pod := grant.Pod{UID: "u-1", Annotations: test.annotations}
		_, err := grant.FromPod(t.Context(), pod, "main", "node-1", nil, ring)
		assert.NoError(t, err, test.description)
	}
}

// Keys change in three steps, and nothing that is signed with the scheduler's key of
// the moment is refused: the nodes learn the new one, the scheduler takes it, the
// nodes forget the old one.
func TestKeyRotation(t *testing.T) {
	byOld := signedOne
	byNew, err := granttest.SigningKey("two").Sign("u-1", "node-1", signedPayload)
	require.NoError(t, err)
	for _, test := range []struct {
		description  string
		node         grant.Keyring
		oldOK, newOK bool
	}{
		{"before", granttest.Keyring("one"), true, false},
		{"the new one as the second", granttest.Keyring("one", "two"), true, true},
		{"the new one as the first", granttest.Keyring("two", "one"), true, true},
		{"after", granttest.Keyring("two"), false, true},
		{"no keys at all", grant.Keyring{}, false, false},
	} {
		t.Run(test.description, func(t *testing.T) {
			assert.Equal(t, test.oldOK, test.node.Verify("u-1", "node-1", signedPayload, byOld) == nil)
			assert.Equal(t, test.newOK, test.node.Verify("u-1", "node-1", signedPayload, byNew) == nil)
		})
	}
}

func TestSignRefuses(t *testing.T) {
	key := granttest.SigningKey("one")
	for _, test := range []struct {
		description        string
		key                *grant.SigningKey
		uid, node, payload string
	}{
		{"an empty key", &grant.SigningKey{}, "u", "n", "p"},
		{"no pod UID", key, "", "n", "p"},
		{"no node", key, "u", "", "p"},
		{"no payload", key, "u", "n", ""},
		{"a payload that is too long", key, "u", "n", strings.Repeat(" ", grant.MaxAnnotationBytes+1)},
	} {
		signature, err := test.key.Sign(test.uid, test.node, test.payload)
		require.Error(t, err, test.description)
		assert.Empty(t, signature, test.description)
	}
}

// A file has one or two keys in PEM, and comments.
func TestParseKeys(t *testing.T) {
	for kind, make := range map[string]func(...string) string{"private": granttest.PrivateKeys, "public": granttest.PublicKeys} {
		one, two := make("one"), make("two")
		for _, test := range []struct {
			description, text string
			keys              int
			says              string
		}{
			{"one", one, 1, ""},
			{"two, comments, empty lines, spaces, DOS line ends", "# current\r\n\n" + strings.ReplaceAll(one, "\n", "\r\n") + " \t\n# previous\n" + two + "\n#", 2, ""},
			{"empty", "", 0, "no key: "},
			{"comments only", "# none\n\n", 0, "no key: "},
			{"three", one + two + make("three"), 0, "more than 2 keys"},
			{"twice the same", one + one, 0, "key 2: is the same key again"},
			{"text before", "mine\n" + one, 0, "a line outside of the keys"},
			{"text between", one + "mine\n" + two, 0, "a line outside of the keys"},
			{"text after", one + "mine", 0, "a line outside of the keys"},
			{"no end", one[:len(one)-10], 0, "key 1: is not complete PEM"},
			{"no end of the first", one[:len(one)-26] + "\n" + two, 0, "key 1: is not complete PEM"},
			{"a character missing", one[:40] + one[41:], 0, "key 1: is not complete PEM"},
			{"four characters missing", one[:40] + one[44:], 0, "key 1: is not an Ed25519 key"},
			{"an old key of 32 bytes in hexadecimal", strings.Repeat("0123", 16), 0, "a line outside of the keys"},
			{"DER", "\x30\x2a\x30\x05", 0, "a line outside of the keys"},
		} {
			t.Run(kind+"/"+test.description, func(t *testing.T) {
				ring, err := grant.ParsePublicKeys([]byte(test.text))
				if kind == "private" {
					var key *grant.SigningKey
					key, ring, err = grant.ParseSigningKeys([]byte(test.text))
					assert.Equal(t, err == nil, key != nil && key.ID() == granttest.SigningKey("one").ID(), "the first signs")
				}
				assert.Len(t, strings.Fields(ring.String()), test.keys)
				if test.says == "" {
					require.NoError(t, err)
					require.NoError(t, ring.Verify("u-1", "node-1", signedPayload, signedOne))
					return
				}
				require.ErrorContains(t, err, test.says)
				assert.NotContains(t, err.Error(), one[40:60])
			})
		}
	}
}

// The error for a key of the wrong type names its type.
func TestParseKeysOfTheWrongKind(t *testing.T) {
	block := func(kind, prefix, key string) string {
		der, err := hex.DecodeString(prefix + key)
		require.NoError(t, err)
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	const (
		private, x25519Private = "302e020100300506032b657004220420", "302e020100300506032b656e04220420"
		public, x25519Public   = "302a300506032b6570032100", "302a300506032b656e032100"
	)
	some, zeros := strings.Repeat("0123", 16), strings.Repeat("00", 32)
	for _, test := range []struct {
		description, text  string
		signing, verifying string // errors of ParseSigningKeys and ParsePublicKeys
	}{
		{"a private key", granttest.PrivateKeys("one"), "", "key 1: is a private key, and a node must not have one"},
		{"a public key", granttest.PublicKeys("one"), "key 1: is a public key, and the scheduler signs with the private key", ""},
		{"both", granttest.PublicKeys("one") + granttest.PrivateKeys("one"), "key 1: is a public key", "key 2: is a private key"},
		{"a key of ssh-keygen", block("OPENSSH PRIVATE KEY", "", some), `is of the type "OPENSSH PRIVATE KEY"`, "is a private key"},
		{"an encrypted key", block("ENCRYPTED PRIVATE KEY", "", some), `is of the type "ENCRYPTED PRIVATE KEY"`, "is a private key"},
		{"a certificate", block("CERTIFICATE", "", some), `is of the type "CERTIFICATE"`, `is of the type "CERTIFICATE"`},
		{"a private key of X25519", block("PRIVATE KEY", x25519Private, some), "is not an Ed25519 key", "is a private key"},
		{"a public key of X25519", block("PUBLIC KEY", x25519Public, some), "is a public key", "is not an Ed25519 key"},
		{"a private key of zeros", block("PRIVATE KEY", private, zeros), "is one repeated byte", "is a private key"},
		{"a public key of zeros", block("PUBLIC KEY", public, zeros), "is a public key", "is one repeated byte"},
	} {
		t.Run(test.description, func(t *testing.T) {
			key, ring, err := grant.ParseSigningKeys([]byte(test.text))
			if test.signing != "" {
				require.ErrorContains(t, err, test.signing)
				require.Nil(t, key)
				require.Empty(t, ring)
			}
			ring, err = grant.ParsePublicKeys([]byte(test.text))
			if test.verifying != "" {
				require.ErrorContains(t, err, test.verifying)
				require.Empty(t, ring)
			}
		})
	}
}

// Printing a private key, with any verb, shows only its ID.
func TestSigningKeysAreNotPrinted(t *testing.T) {
	key := granttest.SigningKey("one")
	seed := sha256.Sum256([]byte("one"))
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		for _, value := range []any{key, *key, []*grant.SigningKey{key}, struct{ key *grant.SigningKey }{key}, struct{ key grant.SigningKey }{*key}} {
			text := fmt.Sprintf(verb, value)
			for _, secret := range []string{string(seed[:4]), hex.EncodeToString(seed[:4]), fmt.Sprintf("%d %d %d", seed[0], seed[1], seed[2]), fmt.Sprintf("%#x, %#x", seed[0], seed[1])} {
				assert.NotContains(t, text, secret, "%s %T", verb, value)
			}
		}
		assert.Contains(t, fmt.Sprintf(verb, key), "grant key "+key.ID(), verb)
	}
}

// BenchmarkVerify measures the cost of a signature in CreateContainer.
func BenchmarkVerify(b *testing.B) {
	ring := granttest.Keyring("two", "one")
	for b.Loop() {
		if err := ring.Verify("u-1", "node-1", signedPayload, signedOne); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzVerify: no signature panics, one form only is accepted, and what is refused
// is not repeated.
func FuzzVerify(f *testing.F) {
	for _, seed := range []string{signedOne, "", "v1", "v1::", signedOne + ":", strings.ToUpper(signedOne), "v1:0000000000000000:" + strings.Repeat("0", 128)} {
		f.Add(seed)
	}
	ring := granttest.Keyring("one", "two")
	f.Fuzz(func(t *testing.T, value string) {
		err := ring.Verify("u-1", "node-1", signedPayload, value)
		if value == signedOne {
			require.NoError(t, err)
			return
		}
		if err == nil { // else only the other key can have made it
			require.Contains(t, value, granttest.SigningKey("two").ID())
			return
		}
		require.ErrorIs(t, err, grant.ErrSignature)
		require.Less(t, len(err.Error()), 400)
	})
}
