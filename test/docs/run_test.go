package docs

// runHere are the pages, or their sections, with commands that are run in sequence on a machine of their own
// with a simulated GPU, Debian's docker and podman; and the text that their output must contain.
var runHere = map[string][]string{
	"README.md#With docker":     {"device.0.total_bytes=8589934592"},
	"docs/QUICKSTART-DOCKER.md": {"device.0.total_bytes=8589934592"},
	"docs/QUICKSTART-PODMAN.md": {"device.0.total_bytes=8589934592", "device.0.total_bytes=4294967296"},
}
