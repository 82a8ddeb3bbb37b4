package request

import (
	"os"
	"testing"
)

// What every start of a container pays for the config.
func BenchmarkLoad(b *testing.B) {
	example, err := os.ReadFile(exampleFile)
	if err != nil {
		b.Fatal(err)
	}
	path := b.TempDir() + "/runtime.yaml"
	if err := os.WriteFile(path, uncommented(example), 0o644); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := load(path, own()); err != nil {
			b.Fatal(err)
		}
	}
}
