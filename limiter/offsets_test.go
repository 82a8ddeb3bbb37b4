package limiter

import (
	"encoding/binary"
	"unsafe"
)

var le = binary.LittleEndian

// Offsets and sizes in bytes, for tests that write into files.
const (
	limitsHeaderSize  = int(unsafe.Sizeof(limitsHeader{}))
	limitsRecordSize  = int(unsafe.Sizeof(limitsRecord{}))
	limitsOffLayout   = int(unsafe.Offsetof(limitsHeader{}.layout))
	limitsOffHeader   = int(unsafe.Offsetof(limitsHeader{}.headerBytes))
	limitsOffRecord   = int(unsafe.Offsetof(limitsHeader{}.recordBytes))
	limitsOffCount    = int(unsafe.Offsetof(limitsHeader{}.recordCount))
	limitsOffGen      = int(unsafe.Offsetof(limitsHeader{}.generation))
	limitsOffFlags    = int(unsafe.Offsetof(limitsHeader{}.flags))
	limitsOffCRC      = int(unsafe.Offsetof(limitsHeader{}.crc32))
	limitsOffIdentity = int(unsafe.Offsetof(limitsHeader{}.identity))
	identitySize      = int(unsafe.Sizeof(limitsHeader{}.identity))

	recordOffSequence   = int(unsafe.Offsetof(limitsRecord{}.sequence))
	recordOffCRC        = int(unsafe.Offsetof(limitsRecord{}.crc32))
	recordOffUUID       = int(unsafe.Offsetof(limitsRecord{}.uuid))
	recordOffMemory     = int(unsafe.Offsetof(limitsRecord{}.memoryLimitBytes))
	recordOffCore       = int(unsafe.Offsetof(limitsRecord{}.corePercent))
	recordOffCoreSoft   = int(unsafe.Offsetof(limitsRecord{}.coreSoftPercent))
	recordOffPolicy     = int(unsafe.Offsetof(limitsRecord{}.policy))
	recordOffPriority   = int(unsafe.Offsetof(limitsRecord{}.priority))
	recordOffFlags      = int(unsafe.Offsetof(limitsRecord{}.flags))
	recordOffCorrection = int(unsafe.Offsetof(limitsRecord{}.correction))
	recordOffElastic    = int(unsafe.Offsetof(limitsRecord{}.elasticPercent))
	recordOffContext    = int(unsafe.Offsetof(limitsRecord{}.contextBytes))
	recordOffName       = int(unsafe.Offsetof(limitsRecord{}.name))
	recordNameSize      = int(unsafe.Sizeof(limitsRecord{}.name))
	recordOffResidue    = int(unsafe.Offsetof(limitsRecord{}.residueBytes))
	recordOffPhysical   = int(unsafe.Offsetof(limitsRecord{}.physicalBytes))

	usageOffLayout     = int(unsafe.Offsetof(usageHeader{}.layout))
	usageOffHeader     = int(unsafe.Offsetof(usageHeader{}.headerBytes))
	usageOffSlot       = int(unsafe.Offsetof(usageHeader{}.slotBytes))
	usageOffSlots      = int(unsafe.Offsetof(usageHeader{}.slotCount))
	usageOffCellOffset = int(unsafe.Offsetof(usageHeader{}.cellOffset))
	usageOffCell       = int(unsafe.Offsetof(usageHeader{}.cellBytes))
	usageOffCells      = int(unsafe.Offsetof(usageHeader{}.cellCount))
	usageOffDevices    = int(unsafe.Offsetof(usageHeader{}.devices))
	usageOffMIG        = int(unsafe.Offsetof(usageHeader{}.mig))
	usageOffUUID       = int(unsafe.Offsetof(usageHeader{}.uuids))
	usageOffHighWater  = int(unsafe.Offsetof(usageHeader{}.highWater))
	usageOffBuckets    = int(unsafe.Offsetof(usageHeader{}.buckets))
	usageBucketSize    = int(unsafe.Sizeof(usageBucket{}))

	slotOffOwner = int(unsafe.Offsetof(usageSlot{}.owner))
	slotOffPID   = int(unsafe.Offsetof(usageSlot{}.pid))

	cellOffCommitted = int(unsafe.Offsetof(usageCell{}.committed))
	cellOffTentative = int(unsafe.Offsetof(usageCell{}.tentative))
	cellOffContext   = int(unsafe.Offsetof(usageCell{}.context))
	cellOffPool      = int(unsafe.Offsetof(usageCell{}.pool))
	cellOffVMM       = int(unsafe.Offsetof(usageCell{}.vmm))
	cellOffGraph     = int(unsafe.Offsetof(usageCell{}.graph))
	cellOffArray     = int(unsafe.Offsetof(usageCell{}.array))
	cellOffSpilled   = int(unsafe.Offsetof(usageCell{}.spilled))

	bucketOffEarned     = int(unsafe.Offsetof(usageBucket{}.earned))
	bucketOffSpent      = int(unsafe.Offsetof(usageBucket{}.spent))
	bucketOffRefilled   = int(unsafe.Offsetof(usageBucket{}.refilled))
	bucketOffThrottled  = int(unsafe.Offsetof(usageBucket{}.throttled))
	bucketOffLaunches   = int(unsafe.Offsetof(usageBucket{}.launches))
	bucketOffLastLaunch = int(unsafe.Offsetof(usageBucket{}.lastLaunch))
	bucketOffRefused    = int(unsafe.Offsetof(usageBucket{}.refused))
)

func recordAt(file []byte, i int) []byte {
	return file[limitsHeaderSize+i*limitsRecordSize:][:limitsRecordSize]
}
