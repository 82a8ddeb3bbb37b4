package noderegister

// Options select what is written. The zero value is for current HAMi, without gpu-manager's label.
type Options struct {
	// NoGPUs omits gpuslice.io/node-gpus: the cluster has no gpuslice-scheduler.
	NoGPUs bool
	// Register is the form of hami.io/node-nvidia-register.
	Register Format
	// NoScores omits hami.io/node-nvidia-score.
	NoScores  bool
	Handshake Handshake
	// NoLabels omits gpuslice.io/gpu.*.
	NoLabels bool
	// TencentModel adds gaia.tencent.com/gpu-model.
	TencentModel bool
}

// Format is a form of hami.io/node-nvidia-register.
type Format int

// The formats.
const (
	FormatJSON Format = iota // current HAMi
	FormatCSV                // older versions, which do not read JSON
	FormatNone               // no annotation: the cluster has no HAMi
)

// Handshake is how requests of schedulers are answered.
type Handshake int

// The modes.
const (
	// HandshakeAnswer works with every HAMi scheduler.
	HandshakeAnswer Handshake = iota
	// HandshakeIgnore is for schedulers that use the node's allocatable devices. It saves two
	// writes per node and half-minute.
	HandshakeIgnore
)

// Metadata are labels and annotations of a node.
type Metadata struct {
	Labels      map[string]string
	Annotations map[string]string
}
