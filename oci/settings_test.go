package oci

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSettingsValidate(t *testing.T) {
	tests := []struct {
		description string
		change      func(*Settings)
		texts       []string // none: valid
	}{
		{"plain", func(*Settings) {}, nil},
		{"every field", func(s *Settings) {
			s.Injection, s.CorePolicy = InjectCDI, CoreForce
		}, nil},
		{"unknown injection", func(s *Settings) { s.Injection = "legacy" }, []string{`"legacy"`, "auto, cdi or envvar"}},
		{"unknown policy", func(s *Settings) { s.CorePolicy = "strict" }, []string{`"strict"`, "default, force or disable"}},
		{"no library", func(s *Settings) { s.LibraryPath = "" }, []string{"library path is empty"}},
		{"relative library", func(s *Settings) { s.LibraryPath = "lib.so" }, []string{`"lib.so"`}},
		{"library with dots", func(s *Settings) { s.LibraryPath = "/var/../etc/lib.so" }, []string{"clean"}},
		{"no preload file", func(s *Settings) { s.PreloadPath = "" }, []string{"ld.so.preload path is empty"}},
		{"empty handler", func(s *Settings) { s.NvidiaHandlers = []string{"nvidia", ""} }, []string{"handler is empty"}},
		{"everything at once", func(s *Settings) { *s = Settings{Injection: "x", CorePolicy: "y"} }, []string{`"x"`, `"y"`, "library path", "preload path"}},
	}
	for _, tt := range tests {
		t.Run(tt.description, func(t *testing.T) {
			s := testSettings()
			tt.change(&s)
			err := s.Validate()
			if len(tt.texts) == 0 {
				assert.NoError(t, err)
				return
			}
			for _, text := range tt.texts {
				assert.ErrorContains(t, err, text)
			}
		})
	}
}
