package api

// Names of the DRA driver.
const (
	// DRADriver is the driver's name in ResourceSlices and ResourceClaims. Names of attributes and capacities without a
	// domain are in its domain.
	DRADriver = "gpu.gpuslice.io"
	// CDIClaimKind is the CDI kind of the devices of prepared ResourceClaims.
	CDIClaimKind = "gpuslice.io/claim"
	// PreparedDirName is the directory of the prepared records, in the state directory.
	PreparedDirName = "prepared"
	// MIGDirName is the directory of the journal of MIG devices that were made on request, in the state directory.
	MIGDirName = "mig"
	// ContainerPreparedDir is where a container's CDI devices mount their prepared records.
	ContainerPreparedDir = "/.gpuslice-claims"
)

// CDIClaimSpecPrefix begins the name of a prepared ResourceClaim's CDI spec; its UID and ".json" follow.
const CDIClaimSpecPrefix = "gpuslice-claim-"

// DeviceClassGPU is the chart's DeviceClass of shares of GPUs.
const DeviceClassGPU = DRADriver

// DeviceClassMIG is the chart's DeviceClass of MIG devices.
const DeviceClassMIG = "mig.gpuslice.io"

// Attributes and capacities of GPUs in ResourceSlices that requests use, in the driver's domain.
const (
	DRAAttributeType  = "type"
	DRATypeGPU        = "gpu"
	DRATypeMIG        = "mig"
	DRAAttributeUUID  = "uuid"
	DRAAttributeModel = "productName"
	DRAAttributeNUMA  = "numaNode"
	// DRAAttributeIsolation is IsolationOfShare, or IsolationHardware of a MIG device.
	DRAAttributeIsolation = "isolation"
	// DRACapacityMemory is device memory; nothing requested: all of it.
	DRACapacityMemory = "memory"
	// DRACapacityCores is the compute share in percent; 0, also if nothing is requested: no share is reserved, and there is no limit.
	DRACapacityCores = "cores"
)

// LabelTranslated, with the value "true", is on the ResourceClaimTemplates that the webhook creates from requests of pods, and
// on their ResourceClaims.
const LabelTranslated = "gpuslice.io/translated"

// Taints of devices in ResourceSlices, with the effect NoSchedule.
const (
	// TaintUnhealthy is on a device of a GPU that is unhealthy or gone.
	TaintUnhealthy = DRADriver + "/unhealthy"
	// TaintCordoned is on a device of a GPU that the operator cordoned.
	TaintCordoned = DRADriver + "/cordoned"
	// TaintNotConnected is on all devices while the agent is not connected to the container runtime.
	TaintNotConnected = DRADriver + "/not-connected"
	// TaintOccupied is on a place of a MIG device while an earlier one there can't be destroyed.
	TaintOccupied = DRADriver + "/occupied"
)
