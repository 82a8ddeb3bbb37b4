package grant

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

const (
	// minKeyBytes is what HMAC-SHA-256 wants of a key (RFC 2104, section 3).
	minKeyBytes = sha256.Size
	// maxKeyBytes is beyond what anybody means.
	maxKeyBytes = 1 << 10
	// keyIDBytes is the length of a key's id.
	keyIDBytes = 8
	// maxKeys are the current key and the previous one.
	maxKeys = 2
)

// Key is a secret that grants are signed with. However it is printed, its id
// comes out and never the secret.
type Key struct {
	id string
	// secret is a function because fmt calls no method of a field that isn't
	// exported: of a key in somebody's struct it prints an address.
	secret func() []byte
}

// ParseKey reads a key of 32 to 1024 bytes: in hexadecimal where the text is
// nothing but hexadecimal digits, an even number of them, in base64 (RFC 4648,
// section 4, padded) else. Errors repeat nothing of it.
func ParseKey(text string) (Key, error) {
	secret, err := hex.DecodeString(text)
	if err != nil {
		secret, err = base64.StdEncoding.Strict().DecodeString(text)
	}
	if err != nil || strings.ContainsAny(text, "\r\n") { // which base64 passes over
		return Key{}, errors.New("a key is neither hexadecimal nor padded base64: make one with openssl rand -hex 32")
	}
	if len(secret) < minKeyBytes || len(secret) > maxKeyBytes {
		return Key{}, fmt.Errorf("a key has %d bytes, and must have %d to %d: make one with openssl rand -hex 32", len(secret), minKeyBytes, maxKeyBytes)
	}
	if bytes.Count(secret, secret[:1]) == len(secret) {
		return Key{}, errors.New("a key is one byte again and again: make one with openssl rand -hex 32")
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("gpuslice.io/grant-key-id"))
	return Key{id: hex.EncodeToString(mac.Sum(nil)[:keyIDBytes]), secret: func() []byte { return secret }}, nil
}

// ID names the key without telling it: the first 8 bytes of
// HMAC-SHA-256(key, "gpuslice.io/grant-key-id") in hexadecimal.
func (k Key) ID() string { return k.id }

// Format prints the key's id, whatever the verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "grant key "+k.id) }

// Keyring is the keys that a signature may be made with: the current one, and
// while keys are changed the previous one too. The one without keys verifies nothing.
type Keyring struct {
	keys []Key
}

// Format prints the keys' ids, whatever the verb.
func (r Keyring) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, r.keys) }

// ParseKeyring reads one or two keys, each on a line of its own, the current one
// first. Blank lines and lines that begin with "#" are passed over, and so are
// spaces around a key.
func ParseKeyring(data []byte) (Keyring, error) {
	var keys []Key
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, err := ParseKey(line)
		if err != nil {
			return Keyring{}, fmt.Errorf("line %d: %w", number, err)
		}
		if slices.ContainsFunc(keys, func(k Key) bool { return k.id == key.id }) {
			return Keyring{}, fmt.Errorf("line %d: the key is there twice", number)
		}
		if keys = append(keys, key); len(keys) > maxKeys {
			return Keyring{}, fmt.Errorf("line %d: more than %d keys: keep the current one and the one before", number, maxKeys)
		}
	}
	if len(keys) == 0 {
		return Keyring{}, errors.New("no key: make one with openssl rand -hex 32")
	}
	return Keyring{keys: keys}, nil
}

// Current is the key to sign with; one without an id in a ring without keys.
func (r Keyring) Current() Key {
	if len(r.keys) == 0 {
		return Key{}
	}
	return r.keys[0]
}

// Verify implements Verifier. The MACs are compared in constant time.
func (r Keyring) Verify(podUID, node, payload, text string) error {
	signature, err := decodeSignature(text)
	if err != nil {
		return err
	}
	if podUID == "" || node == "" || len(payload) > MaxAnnotationBytes {
		return refuse(ErrSignature, "can't be checked without a pod UID and a node, or for more than %d bytes", MaxAnnotationBytes)
	}
	for _, key := range r.keys {
		if key.id != signature.keyID {
			continue
		}
		if hmac.Equal(key.mac(podUID, node, payload), signature.mac) {
			return nil
		}
		return refuse(ErrSignature, "is not for this grant, pod UID and node %q: the grant was changed or copied; delete the pod so that it is scheduled again", node)
	}
	return refuse(ErrSignature, "was made with key %s, which this node does not have (--grant-key-file): give the node the scheduler's key, or delete the pod so that it is scheduled again with the present one", signature.keyID)
}
