package main

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path"
	"time"
)

// writeTarGz packs files as root's, below a directory; "": below none.
func writeTarGz(to, dir string, contents []content, date time.Time) error {
	return write(to, func(w io.Writer) error {
		compressed, err := gzip.NewWriterLevel(w, gzip.BestCompression)
		if err != nil {
			return err
		}
		archive := tar.NewWriter(compressed)
		for _, c := range contents {
			text, err := os.ReadFile(c.from)
			if err != nil {
				return err
			}
			if err := addToTar(archive, path.Join(dir, c.to), text, c.mode, date); err != nil {
				return err
			}
		}
		return errors.Join(archive.Close(), compressed.Close())
	})
}

func addToTar(w *tar.Writer, name string, data []byte, mode os.FileMode, date time.Time) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(mode), Size: int64(len(data)), ModTime: date, Format: tar.FormatUSTAR}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}

func writeZip(to string, contents []content, date time.Time) error {
	return write(to, func(w io.Writer) error {
		archive := zip.NewWriter(w)
		for _, c := range contents {
			text, err := os.ReadFile(c.from)
			if err != nil {
				return err
			}
			h := &zip.FileHeader{Name: c.to, Method: zip.Deflate, Modified: date}
			h.SetMode(c.mode)
			file, err := archive.CreateHeader(h)
			if err != nil {
				return err
			}
			if _, err := file.Write(text); err != nil {
				return err
			}
		}
		return archive.Close()
	})
}

// write leaves no file if it fails.
func write(path string, fill func(io.Writer) error) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	b := bufio.NewWriterSize(f, 1<<20)
	return errors.Join(fill(b), b.Flush(), f.Close())
}
