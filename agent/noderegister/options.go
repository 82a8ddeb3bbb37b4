package noderegister

// Options say what is told, and how. The zero value tells everything but gpu-manager's
// label, as current HAMi does.
type Options struct {
	// NoGPUs leaves out gpuslice.io/node-gpus: no scheduler of ours in this cluster.
	NoGPUs bool
	// Register is the form of hami.io/node-nvidia-register.
	Register Format
	// NoScores leaves out hami.io/node-nvidia-score.
	NoScores bool
	// Handshake says who is answered.
	Handshake Handshake
	// NoLabels leaves out gpuslice.io/gpu.*.
	NoLabels bool
	// TencentModel adds gpu-manager's label gaia.tencent.com/gpu-model.
	TencentModel bool
}

// Format is a form of hami.io/node-nvidia-register.
type Format int

// The formats.
const (
	FormatJSON Format = iota // current HAMi
	FormatCSV                // older ones, which read no JSON
	FormatNone               // the annotation isn't written: no HAMi in this cluster
)

// Handshake says how a scheduler's questions are answered.
type Handshake int

// The answers.
const (
	// HandshakeAnswer answers every question. Every HAMi scheduler is content with it.
	HandshakeAnswer Handshake = iota
	// HandshakeIgnore leaves hami.io/node-handshake alone, for schedulers that look at
	// the node's allocatable devices. It saves two writes a node and half-minute.
	HandshakeIgnore
)

// Metadata is a node's labels and annotations, or some of them.
type Metadata struct {
	Labels      map[string]string
	Annotations map[string]string
}
