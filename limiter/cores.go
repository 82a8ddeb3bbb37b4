package limiter

import (
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"unsafe"
)

// Bounds of CoreState.Correction.
const (
	MinCorrection = 250
	MaxCorrection = 4000
)

// CoreState is what the host finds out about a container's use of a GPU while it runs.
// It is in the limits file beside the limits themselves, and the library follows it
// within 100 ms.
type CoreState struct {
	// Contended: others use the GPU now, so that a share of the default policy is enforced.
	Contended bool
	// Blocked: somebody of higher priority uses the GPU, and the container gets what that
	// one leaves (ElasticPercent), or next to nothing.
	Blocked bool
	// Correction is a factor of the share in thousandths, for what launches are estimated
	// to cost and what they cost differ. 0 is none, as 1000.
	Correction uint16
	// ElasticPercent is what a share with a soft ceiling is now, while others use the GPU
	// too, and 0 the hard share; of a container that is blocked, what it has, and 0 next to nothing;
	// of one without a share that is contended, what shares leave it, and 0 that it is not limited.
	ElasticPercent uint16
	// ResidueBytes is the memory that the driver says the container has beyond what its
	// processes have charged: what contexts grow by, modules, libraries' own. It is taken
	// off what they may still charge.
	ResidueBytes uint64
}

func (s CoreState) validate() error {
	switch {
	case s.Correction != 0 && (s.Correction < MinCorrection || s.Correction > MaxCorrection):
		return fmt.Errorf("correction %d is not 0 and not %d to %d", s.Correction, MinCorrection, MaxCorrection)
	case s.ElasticPercent > maxRecordCorePercent:
		return fmt.Errorf("elastic core percent %d is above 100", s.ElasticPercent)
	}
	return nil
}

// UpdateCores writes the state of each GPU of a claim's limits file, in the file's order.
// Records that say it already are left alone, and so is the file where all do.
func UpdateCores(claimDir string, states []CoreState) error {
	for i, s := range states {
		if err := s.validate(); err != nil {
			return fmt.Errorf("update cores of %s: GPU %d: %w", claimDir, i, err)
		}
	}
	if err := changeLimits(claimDir, func(limits []byte) error { return rewriteCores(limits, states) }); err != nil {
		return fmt.Errorf("update cores of %s: %w", claimDir, err)
	}
	return nil
}

// Wake has the container's processes look at the limits again, as a change does: a writer
// that was killed after its change may not have notified them.
func Wake(claimDir string) error {
	if err := changeLimits(claimDir, func(limits []byte) error {
		atomic.AddUint64((*uint64)(unsafe.Pointer(&limits[limitsOffGen])), 1)
		return nil
	}); err != nil {
		return fmt.Errorf("wake the processes of %s: %w", claimDir, err)
	}
	return nil
}

func rewriteCores(file []byte, states []CoreState) error {
	if le.Uint32(file[limitsOffCRC:]) != headerCRC(file) || int(le.Uint32(file[limitsOffCount:])) != len(states) {
		return fmt.Errorf("its header is wrong, or it does not have %d GPUs", len(states))
	}
	changed := false
	for i, s := range states {
		record := recordAt(file, i)
		// One that is being rewritten by nobody, for the file is locked, has a dead
		// writer: UpdateLimits, which knows all of it, has to write it again.
		if !intact(record) {
			return fmt.Errorf("record %d: %w: write the limits again", i, ErrHalfWritten)
		}
		want := make([]byte, limitsRecordSize)
		copy(want, record)
		encodeCores(want, s)
		changed = changed || string(want) != string(record)
		rewriteRecord(record, want)
	}
	if changed {
		atomic.AddUint64((*uint64)(unsafe.Pointer(&file[limitsOffGen])), 1)
	}
	return nil
}

func intact(record []byte) bool {
	return le.Uint32(record[recordOffSequence:])%2 == 0 &&
		le.Uint32(record[recordOffCRC:]) == crc32.ChecksumIEEE(record[recordOffUUID:])
}

// encodeCores changes a record that is not the file's own.
func encodeCores(record []byte, s CoreState) {
	flags := le.Uint32(record[recordOffFlags:]) &^ (recordFlagContended | recordFlagBlocked)
	if s.Contended {
		flags |= recordFlagContended
	}
	if s.Blocked {
		flags |= recordFlagBlocked
	}
	le.PutUint32(record[recordOffFlags:], flags)
	le.PutUint16(record[recordOffCorrection:], s.Correction)
	le.PutUint16(record[recordOffElastic:], s.ElasticPercent)
	le.PutUint64(record[recordOffResidue:], s.ResidueBytes)
	le.PutUint32(record[recordOffCRC:], crc32.ChecksumIEEE(record[recordOffUUID:]))
}

func decodeCores(record []byte) CoreState {
	flags := le.Uint32(record[recordOffFlags:])
	return CoreState{
		Contended:      flags&recordFlagContended != 0,
		Blocked:        flags&recordFlagBlocked != 0,
		Correction:     le.Uint16(record[recordOffCorrection:]),
		ElasticPercent: le.Uint16(record[recordOffElastic:]),
		ResidueBytes:   le.Uint64(record[recordOffResidue:]),
	}
}

// enforced says whether launches are charged to the share of a record, as cores_rate_of
// (src/rate.c) does.
func enforced(record []byte) bool {
	flags := le.Uint32(record[recordOffFlags:])
	contended := flags&recordFlagContended != 0
	hard, soft := le.Uint32(record[recordOffCore:]), min(le.Uint32(record[recordOffCoreSoft:]), maxRecordCorePercent)
	policy, elastic := Policy(le.Uint32(record[recordOffPolicy:])), uint32(le.Uint16(record[recordOffElastic:]))
	switch {
	case flags&recordFlagBlocked != 0:
		return true
	case policy == PolicyDisable || hard >= maxRecordCorePercent:
		return false
	case hard == 0:
		return contended && elastic > 0 && elastic < maxRecordCorePercent
	case soft > hard && !contended:
		return soft < maxRecordCorePercent
	case soft > hard:
		return min(max(elastic, hard), soft) < maxRecordCorePercent
	}
	return policy == PolicyForce || contended
}

// keepCores takes the state of an old record over into a new one.
func keepCores(record, old []byte) {
	if intact(old) {
		encodeCores(record, decodeCores(old))
	}
}

// ReadCores reads the state of each GPU of a limits file, in the file's order.
func ReadCores(path string) ([]CoreState, error) {
	content, l, err := readLimits(path)
	if err != nil {
		return nil, fmt.Errorf("read cores: %w", err)
	}
	states := make([]CoreState, len(l.Devices))
	for i := range states {
		states[i] = decodeCores(recordAt(content, i))
	}
	return states, nil
}

// CoreUsage is what a container says of its compute time on a GPU: a tenant's word,
// good for showing people and for what concerns that container alone.
type CoreUsage struct {
	ChargedNanoseconds   uint64 // of the GPU, as estimated
	ThrottledNanoseconds uint64 // that launches waited
	Launches             uint64 // while the share was enforced
	// LastLaunchNanoseconds is when the last of them was, by CLOCK_MONOTONIC; 0: never.
	LastLaunchNanoseconds uint64
}

func decodeBucket(header []byte, i int) CoreUsage {
	b := bucketAt(header, i)
	return CoreUsage{
		ChargedNanoseconds:   le.Uint64(b[bucketOffSpent:]),
		ThrottledNanoseconds: le.Uint64(b[bucketOffThrottled:]),
		Launches:             le.Uint64(b[bucketOffLaunches:]),

		LastLaunchNanoseconds: le.Uint64(b[bucketOffLastLaunch:]),
	}
}

func bucketAt(header []byte, i int) []byte {
	return header[usageOffBuckets+i*usageBucketSize:][:usageBucketSize]
}

// ReadCoreUsage reads the header of a usage file alone, for who looks often.
func ReadCoreUsage(path string) ([]CoreUsage, error) {
	f, err := openUsage(path)
	if err != nil {
		return nil, err
	}
	defer f.close()
	header := make([]byte, usageHeaderSize)
	if _, err := f.ReadAt(header, 0); err != nil {
		return nil, fmt.Errorf("read usage %s: %w: header: %w", path, ErrUsage, err)
	}
	u, err := decodeUsageHeader(header)
	if err != nil {
		return nil, fmt.Errorf("read usage %s: %w", path, err)
	}
	cores := make([]CoreUsage, len(u.Devices))
	for i, d := range u.Devices {
		cores[i] = d.Cores
	}
	return cores, nil
}
