package granttest

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"strings"

	"github.com/gpuslice/gpuslice/grant"
)

// PrivateKeys returns a scheduler's key file: PEM with one key for each seed. The same seed
// makes the same key.
func PrivateKeys(seeds ...string) string {
	var text strings.Builder
	for _, seed := range seeds {
		text.WriteString(block("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(private(seed)))))
	}
	return text.String()
}

// PublicKeys returns a node's key file: PEM with one key for each seed.
func PublicKeys(seeds ...string) string {
	var text strings.Builder
	for _, seed := range seeds {
		text.WriteString(block("PUBLIC KEY", must(x509.MarshalPKIXPublicKey(private(seed).Public()))))
	}
	return text.String()
}

// SigningKey returns the key of a seed.
func SigningKey(seed string) *grant.SigningKey {
	key, _, err := grant.ParseSigningKeys([]byte(PrivateKeys(seed)))
	return must(key, err)
}

// Keyring returns the public keys of the seeds.
func Keyring(seeds ...string) grant.Keyring {
	return must(grant.ParsePublicKeys([]byte(PublicKeys(seeds...))))
}

func private(seed string) ed25519.PrivateKey {
	sum := sha256.Sum256([]byte(seed))
	return ed25519.NewKeyFromSeed(sum[:])
}

func block(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
