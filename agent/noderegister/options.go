package noderegister

// Options select what is written. The zero value is for current HAMi, without gpu-manager's label.
type Options struct {
	Register     Format
	Handshake    Handshake
	TencentModel bool
}

// Format is a form of hami.io/node-nvidia-register.
type Format int

const (
	FormatJSON Format = iota
	FormatCSV
)

// Handshake is how requests of schedulers are answered.
type Handshake int

const (
	// HandshakeAnswer works with every HAMi scheduler.
	HandshakeAnswer Handshake = iota
	// HandshakeIgnore is for schedulers that use the node's allocatable devices. It saves two
	// writes per node and half-minute.
	HandshakeIgnore
)

type Metadata struct {
	Labels      map[string]string
	Annotations map[string]string
}
