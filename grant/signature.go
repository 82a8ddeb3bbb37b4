package grant

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
)

// AnnotationSignature is the signature of gpuslice.io/grant, beside it on the pod:
//
//	v1:<key id, 16 hex digits>:<HMAC-SHA-256, 64 hex digits>
//
// Digits are in lower case. The MAC is over the fields
//
//	"gpuslice.io/grant-signature", "v1", key id, pod UID, node name, payload
//
// each preceded by its length as 8 bytes, big-endian, so that no two lists of
// fields are the same bytes. The payload is the other annotation's value, byte
// for byte: what is equal as JSON only is another payload.
const AnnotationSignature = "gpuslice.io/grant-signature"

// signatureVersion is the only form of a signature there is.
const signatureVersion = "v1"

// signature is what the annotation says.
type signature struct {
	keyID string
	mac   []byte
}

// decodeSignature reads the annotation. Its errors repeat nothing of the input.
func decodeSignature(value string) (signature, error) {
	version, rest, _ := strings.Cut(value, ":")
	id, digits, _ := strings.Cut(rest, ":")
	if version != signatureVersion || !isLowerHex(id, keyIDBytes) || !isLowerHex(digits, sha256.Size) {
		return signature{}, refuse(ErrSignature, "is not written as %s:<key id, %d hex digits>:<MAC, %d hex digits>", signatureVersion, 2*keyIDBytes, 2*sha256.Size)
	}
	mac, err := hex.DecodeString(digits)
	if err != nil {
		return signature{}, refuse(ErrSignature, "is not hexadecimal")
	}
	return signature{keyID: id, mac: mac}, nil
}

// encode writes the annotation.
func (s signature) encode() string {
	return signatureVersion + ":" + s.keyID + ":" + hex.EncodeToString(s.mac)
}

// isLowerHex says whether a text is so many bytes in lower-case hexadecimal.
func isLowerHex(text string, bytes int) bool {
	return len(text) == 2*bytes && strings.Trim(text, "0123456789abcdef") == ""
}

// Sign returns the value of gpuslice.io/grant-signature for a pod that gets the
// payload as its gpuslice.io/grant and is bound to the node.
func Sign(key Key, podUID, node, payload string) (string, error) {
	switch {
	case key.id == "":
		return "", refuse(ErrSignature, "sign a grant: the key is empty")
	case podUID == "" || node == "" || payload == "":
		return "", refuse(ErrSignature, "sign a grant: pod UID, node and payload must not be empty")
	case len(payload) > MaxAnnotationBytes:
		return "", refuse(ErrMalformed, "sign a grant: %d bytes: at most %d are read", len(payload), MaxAnnotationBytes)
	}
	return signature{keyID: key.id, mac: key.mac(podUID, node, payload)}.encode(), nil
}

// mac is the MAC of one grant.
func (k Key) mac(podUID, node, payload string) []byte {
	mac := hmac.New(sha256.New, k.secret())
	for _, field := range []string{AnnotationSignature, signatureVersion, k.id, podUID, node, payload} {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(field)))
		mac.Write(length[:])
		mac.Write([]byte(field))
	}
	return mac.Sum(nil)
}

// Verifier says whether a signature is for just this pod, node and payload.
type Verifier interface {
	Verify(podUID, node, payload, signature string) error
}

// Authenticate says whether what FromPod would read in the pod's annotations was
// written by somebody who holds a key. Only gpuslice.io/grant can be signed; HAMi's
// positional annotation is refused as soon as it grants anything, for whichever
// container. Annotations that grant nothing need no signature.
//
// It is for a container that is about to be created. One that runs was judged
// when it was created, and what it holds counts whatever the keys are now.
//
// Errors name the pod, the container and the annotation, and are ErrSignature, or
// ErrMalformed where HAMi's annotation can't be read. They have nothing of a key
// or a MAC in them.
func Authenticate(pod Pod, container, node string, keys Verifier) error {
	if err := authenticate(pod, node, keys); err != nil {
		return inPod(pod, container, err)
	}
	return nil
}

func authenticate(pod Pod, node string, keys Verifier) error {
	payload, ok := pod.Annotations[AnnotationGrant]
	if !ok {
		key, positional, err := readPositional(pod.Annotations)
		if err != nil || positional.Empty() {
			return err
		}
		return refuse(ErrSignature, "annotation %s: this node takes signed grants only, and HAMi's annotations can't be signed: use a scheduler that writes %s and %s, or run the agent without --grant-key-file",
			key, AnnotationGrant, AnnotationSignature)
	}
	signature, ok := pod.Annotations[AnnotationSignature]
	if !ok {
		return refuse(ErrSignature, "annotation %s: has no %s beside it, and this node takes signed grants only: give the scheduler a key of the node's --grant-key-file, and delete the pod so that it is scheduled again",
			AnnotationGrant, AnnotationSignature)
	}
	if err := keys.Verify(pod.UID, node, payload, signature); err != nil {
		return inAnnotation(AnnotationSignature, err)
	}
	return nil
}
