package grant

import (
	"crypto/ed25519"
	"encoding/binary"
	"encoding/hex"
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

const signatureVersion = "v1"

type signature struct {
	keyID string
	bytes []byte
}

func decodeSignature(value string) (signature, error) {
	version, rest, _ := strings.Cut(value, ":")
	id, digits, _ := strings.Cut(rest, ":")
	if version != signatureVersion || !isLowerHex(id, keyIDBytes) || !isLowerHex(digits, ed25519.SignatureSize) {
		return signature{}, Errorf(ErrSignature, "is not written as %s:<key ID, %d hex digits>:<signature, %d hex digits>", signatureVersion, 2*keyIDBytes, 2*ed25519.SignatureSize)
	}
	decoded, err := hex.DecodeString(digits)
	return signature{keyID: id, bytes: decoded}, err
}

func isLowerHex(text string, bytes int) bool {
	return len(text) == 2*bytes && strings.Trim(text, "0123456789abcdef") == ""
}

// Sign returns the value of gpuslice.io/grant-signature for a pod on the node, with payload as its
// gpuslice.io/grant:
//
//	v1:<key ID, 16 hex digits>:<Ed25519 signature, 128 hex digits>
//
// Digits are in lower case. The signed bytes are the fields
//
//	"gpuslice.io/grant-signature", "v1", key ID, pod UID, node name, payload
//
// each preceded by its length as 8 bytes, big-endian. The key ID is the first 8 bytes of the SHA-256 of the public
// key's DER.
func (k *SigningKey) Sign(podUID, node, payload string) (string, error) {
	switch {
	case k.key == nil:
		return "", Errorf(ErrSignature, "sign a grant: the key is empty")
	case podUID == "" || node == "" || payload == "":
		return "", Errorf(ErrSignature, "sign a grant: pod UID, node and payload must not be empty")
	case len(payload) > MaxAnnotationBytes:
		return "", Errorf(ErrMalformed, "sign a grant: %d bytes: at most %d are read", len(payload), MaxAnnotationBytes)
	}
	bytes := ed25519.Sign(k.key(), signed(k.id, podUID, node, payload))
	return signatureVersion + ":" + k.id + ":" + hex.EncodeToString(bytes), nil
}

func signed(keyID, podUID, node, payload string) []byte {
	fields := [...]string{api.AnnotationSignature, signatureVersion, keyID, podUID, node, payload}
	size := 0
	for _, field := range fields {
		size += 8 + len(field)
	}
	message := make([]byte, 0, size)
	for _, field := range fields {
		message = binary.BigEndian.AppendUint64(message, uint64(len(field)))
		message = append(message, field...)
	}
	return message
}

// Verifier verifies that a signature is for this pod, node and payload.
type Verifier interface {
	Verify(podUID, node, payload, signature string) error
}

func verify(pod Pod, node string, d *Dialect, key string, keys Verifier) error {
	signature, ok := pod.Annotations[d.Signature]
	if !ok {
		return Errorf(ErrSignature, "annotation %s: %s is missing, and this node accepts signed grants only: give the scheduler the private key of the node's --grant-public-key-file, and delete the pod so that it is scheduled again",
			key, d.Signature)
	}
	if err := keys.Verify(pod.UID, node, pod.Annotations[key], signature); err != nil {
		return inAnnotation(d.Signature, err)
	}
	return nil
}
