package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// joinImages makes one OCI archive of several, each with an image for one platform, and returns the digest of the index
// that has them all.
func joinImages(to, name string, archives []string) (digest string, err error) {
	blobs := map[string][]byte{}
	inner := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, path := range archives {
		one, err := readImage(path, blobs)
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		for _, other := range inner.Manifests {
			if other.Platform.Equals(*one.Platform) {
				return "", fmt.Errorf("%s: it is the second image for %s", path, one.Platform)
			}
		}
		one.Annotations = nil // the name of the single image
		inner.Manifests = append(inner.Manifests, one)
	}
	text, err := json.Marshal(inner)
	if err != nil {
		return "", err
	}
	hash, size, err := v1.SHA256(bytes.NewReader(text))
	if err != nil {
		return "", err
	}
	blobs["blobs/sha256/"+hash.Hex] = text
	_, tag, _ := strings.Cut(name[strings.LastIndexByte(name, '/')+1:], ":")
	outer := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{{
		MediaType: types.OCIImageIndex, Digest: hash, Size: size,
		Annotations: map[string]string{"io.containerd.image.name": qualified(name), "org.opencontainers.image.ref.name": tag},
	}}}
	if blobs["index.json"], err = json.Marshal(outer); err != nil {
		return "", err
	}
	blobs["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	return hash.String(), write(to, func(w io.Writer) error {
		archive := tar.NewWriter(w)
		for _, name := range slices.Sorted(maps.Keys(blobs)) {
			if err := addToTar(archive, name, blobs[name], 0o644, time.Unix(0, 0)); err != nil {
				return err
			}
		}
		return archive.Close()
	})
}

// qualified adds the default registry, as install/image does.
func qualified(name string) string {
	first, _, more := strings.Cut(name, "/")
	switch {
	case !more:
		return "docker.io/library/" + name
	case strings.ContainsAny(first, ".:") || first == "localhost":
		return name
	default:
		return "docker.io/" + name
	}
}

// readImage adds an archive's blobs, and returns the only image of its index.
func readImage(path string, blobs map[string][]byte) (image v1.Descriptor, err error) {
	f, err := os.Open(path)
	if err != nil {
		return image, err
	}
	defer f.Close()
	var index v1.IndexManifest
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return image, err
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return image, err
		}
		switch {
		case h.Name == "index.json":
			if err := json.Unmarshal(data, &index); err != nil {
				return image, err
			}
		case strings.HasPrefix(h.Name, "blobs/sha256/") && h.Typeflag == tar.TypeReg:
			blobs[h.Name] = data
		}
	}
	if len(index.Manifests) != 1 || index.Manifests[0].Platform == nil {
		return image, errors.New("want an index of one image with its platform")
	}
	return index.Manifests[0], nil
}
