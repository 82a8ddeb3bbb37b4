package limiter

import (
	"fmt"
	"hash/crc32"
)

// Bounds of CoreState.Correction.
const (
	MinCorrection = 250
	MaxCorrection = 4000
)

// CoreState is the host's feedback in the limits file. The library reads it every 100 ms.
type CoreState struct {
	// Contended: others use the GPU.
	Contended bool
	// Blocked: a container of higher priority uses the GPU.
	Blocked bool
	// Correction is a factor of the share in thousandths, for errors of estimated costs. 0 is 1000.
	Correction uint16
	// ElasticPercent is a soft ceiling while contended (0: the hard share), the rest for a blocked container (0: nearly
	// nothing), or that for a contended container without a share (0: not limited).
	ElasticPercent uint16
	// ResidueBytes is memory of the container that only the driver counts, such as modules. It reduces the limit.
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

// UpdateCores writes changed states into a claim's limits file, in its order.
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

// Wake makes the container's processes read the limits again: a killed writer may not have notified them.
func Wake(claimDir string) error {
	if err := changeLimits(claimDir, func(limits []byte) error {
		nextGeneration(limits)
		return nil
	}); err != nil {
		return fmt.Errorf("wake the processes of %s: %w", claimDir, err)
	}
	return nil
}

func rewriteCores(file []byte, states []CoreState) error {
	if le.Uint32(file[limitsOffCRC:]) != headerCRC(file) || int(le.Uint32(file[limitsOffCount:])) != len(states) {
		return fmt.Errorf("the header is invalid, or does not have %d GPUs", len(states))
	}
	changed := false
	for i, s := range states {
		record := recordAt(file, i)
		// Its writer was killed. Only UpdateLimits knows the whole record.
		if !intact(record) {
			return fmt.Errorf("record %d: %w", i, ErrHalfWritten)
		}
		want := make([]byte, limitsRecordSize)
		copy(want, record)
		encodeCores(want, s)
		changed = changed || string(want) != string(record)
		rewriteRecord(record, want)
	}
	if changed {
		nextGeneration(file)
	}
	return nil
}

func intact(record []byte) bool {
	return le.Uint32(record[recordOffSequence:])%2 == 0 &&
		le.Uint32(record[recordOffCRC:]) == crc32.ChecksumIEEE(record[recordOffUUID:])
}

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

// enforced must agree with cores_rate_of (src/cores.c).
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

func keepCores(record, old []byte) {
	if intact(old) {
		encodeCores(record, decodeCores(old))
	}
}

// ReadCores reads the states from a limits file, in its order.
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

// CoreUsage is a container's compute time on a GPU, as it reports itself.
type CoreUsage struct {
	ChargedNanoseconds   uint64 // estimated
	ThrottledNanoseconds uint64 // waited by launches
	Launches             uint64 // while the share was enforced
	// LastLaunchNanoseconds is by CLOCK_MONOTONIC; 0: never.
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

// ReadCoreUsage reads only the header.
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
	var u Usage
	if err := decodeUsageInto(&u, header); err != nil {
		return nil, fmt.Errorf("read usage %s: %w", path, err)
	}
	cores := make([]CoreUsage, len(u.Devices))
	for i, d := range u.Devices {
		cores[i] = d.Cores
	}
	return cores, nil
}
