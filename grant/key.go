package grant

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpuslice/gpuslice/internal/quote"
)

const (
	keyIDBytes = 8
	maxKeys    = 2
)

// An Ed25519 key in DER is a fixed prefix and 32 bytes (RFC 8410). crypto/x509 is too large for the programs
// that link this package.
var (
	privatePrefix = []byte("\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20")
	publicPrefix  = []byte("\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00")
)

// The types of PEM blocks.
const (
	privateBlock = "PRIVATE KEY"
	publicBlock  = "PUBLIC KEY"
)

// SigningKey signs grants. fmt prints only its ID.
type SigningKey struct {
	id string
	// key is a function because fmt does not call Format for an unexported field of another struct.
	key func() ed25519.PrivateKey
}

func (k *SigningKey) ID() string { return k.id }

func (k SigningKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "grant key "+k.id) }

type publicKey struct {
	// id is the first 8 bytes of the SHA-256 of the key's DER, in hexadecimal.
	id  string
	key ed25519.PublicKey
}

// Keyring holds the public keys that verify grants: one or, during a rotation, two. The empty Keyring verifies
// nothing.
type Keyring struct {
	keys []publicKey
}

// String returns the keys' IDs.
func (r Keyring) String() string {
	ids := make([]string, len(r.keys))
	for i, key := range r.keys {
		ids[i] = key.id
	}
	return strings.Join(ids, " ")
}

// ParsePublicKeys reads one or two public keys in PEM (`openssl pkey -pubout`). Other lines must be empty or
// begin with "#".
func ParsePublicKeys(data []byte) (Keyring, error) {
	var ring Keyring
	if err := eachKey(data, publicBlock, publicPrefix, ring.add); err != nil {
		return Keyring{}, err
	}
	return ring, nil
}

// ParseSigningKeys reads one or two private keys in PEM (`openssl genpkey -algorithm ed25519`). It returns the
// first, which signs, and the public keys of all. Errors contain nothing of a key.
func ParseSigningKeys(data []byte) (*SigningKey, Keyring, error) {
	var current *SigningKey
	var ring Keyring
	err := eachKey(data, privateBlock, privatePrefix, func(seed []byte) error {
		key := ed25519.NewKeyFromSeed(seed)
		if err := ring.add(key.Public().(ed25519.PublicKey)); err != nil {
			return err
		}
		if current == nil {
			current = &SigningKey{id: ring.keys[0].id, key: func() ed25519.PrivateKey { return key }}
		}
		return nil
	})
	if err != nil {
		return nil, Keyring{}, err
	}
	return current, ring, nil
}

// NewPrivateKey returns a new private key in PEM.
func NewPrivateKey() ([]byte, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("make a private key: %w", err)
	}
	return encodeKey(privateBlock, privatePrefix, key.Seed()), nil
}

// PEM returns the public keys as ParsePublicKeys reads them.
func (r Keyring) PEM() []byte {
	var text []byte
	for _, key := range r.keys {
		text = append(text, encodeKey(publicBlock, publicPrefix, key.key)...)
	}
	return text
}

// Contains reports whether the ring has all keys of another one.
func (r Keyring) Contains(other Keyring) bool {
	return !slices.ContainsFunc(other.keys, func(key publicKey) bool {
		return !slices.ContainsFunc(r.keys, func(k publicKey) bool { return k.id == key.id })
	})
}

func encodeKey(blockType string, prefix, key []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: blockType, Bytes: slices.Concat(prefix, key)})
}

func (r *Keyring) add(key []byte) error {
	sum := sha256.Sum256(slices.Concat(publicPrefix, key))
	next := publicKey{id: hex.EncodeToString(sum[:keyIDBytes]), key: key}
	if slices.ContainsFunc(r.keys, func(k publicKey) bool { return k.id == next.id }) {
		return errors.New("is the same key again")
	}
	r.keys = append(r.keys, next)
	return nil
}

func eachKey(data []byte, blockType string, prefix []byte, add func([]byte) error) error {
	begin := []byte("-----BEGIN ")
	for number := 1; ; number++ {
		start := bytes.Index(data, begin)
		outside := data
		if start >= 0 {
			outside = data[:start]
		}
		for line := range bytes.Lines(outside) {
			if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
				return fmt.Errorf("a line outside of the keys is neither empty nor a comment (#): each key must be PEM, from -----BEGIN %s----- to -----END %s-----: %s", blockType, blockType, howTo(blockType))
			}
		}
		switch {
		case start < 0 && number == 1:
			return fmt.Errorf("no key: %s", howTo(blockType))
		case start < 0:
			return nil
		case number > maxKeys:
			return fmt.Errorf("more than %d keys: keep the current key and one other", maxKeys)
		}
		block, rest := pem.Decode(data[start:])
		// Decode skips a key that it can't read.
		if block == nil || bytes.Count(data[start:len(data)-len(rest)], begin) != 1 {
			return fmt.Errorf("key %d: is not complete PEM", number)
		}
		data = rest
		key, err := decodeKey(block, blockType, prefix)
		if err == nil {
			err = add(key)
		}
		if err != nil {
			return fmt.Errorf("key %d: %w", number, err)
		}
	}
}

func decodeKey(block *pem.Block, want string, prefix []byte) ([]byte, error) {
	key, matches := bytes.CutPrefix(block.Bytes, prefix)
	switch {
	case want == publicBlock && strings.HasSuffix(block.Type, privateBlock):
		return nil, errors.New("is a private key, and a node must not have one: give nodes the public key (openssl pkey -in PRIVATE -pubout), and replace the private key: root of this node may have read it")
	case want == privateBlock && block.Type == publicBlock:
		return nil, errors.New("is a public key, and the scheduler signs with the private key: " + howTo(want))
	case block.Type != want:
		return nil, fmt.Errorf("is of the type %s, and must be %s: %s", quote.Short(block.Type), quote.Short(want), howTo(want))
	case !matches || len(key) != ed25519.PublicKeySize || len(block.Headers) > 0:
		return nil, errors.New("is not an Ed25519 key: " + howTo(want))
	case bytes.Count(key, key[:1]) == len(key): // with the public key 0, signatures can be forged
		return nil, errors.New("is one repeated byte: " + howTo(want))
	}
	return key, nil
}

func howTo(blockType string) string {
	if blockType == privateBlock {
		return "make one with openssl genpkey -algorithm ed25519"
	}
	return "make it from the private key with openssl pkey -in PRIVATE -pubout"
}

func (r Keyring) Verify(podUID, node, payload, text string) error {
	signature, err := decodeSignature(text)
	if err != nil {
		return err
	}
	if podUID == "" || node == "" || len(payload) > MaxAnnotationBytes {
		return Errorf(ErrSignature, "can't be checked without a pod UID and a node, or for more than %d bytes", MaxAnnotationBytes)
	}
	for _, key := range r.keys {
		if key.id != signature.keyID {
			continue
		}
		if ed25519.Verify(key.key, signed(key.id, podUID, node, payload), signature.bytes) {
			return nil
		}
		return Errorf(ErrSignature, "is not for this grant, pod UID and node %q: the grant was changed or copied; delete the pod so that it is scheduled again", node)
	}
	return Errorf(ErrSignature, "was made with key %s, which this node does not have (--grant-public-key-file): give the node the scheduler's public key, or delete the pod so that it is scheduled again with the current key", signature.keyID)
}
