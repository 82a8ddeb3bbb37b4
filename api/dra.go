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
	// ContainerPreparedDir is where a container's CDI devices mount their prepared records.
	ContainerPreparedDir = "/.gpuslice-claims"
)

// CDIClaimSpecPrefix begins the name of a prepared ResourceClaim's CDI spec; its UID and ".json" follow.
const CDIClaimSpecPrefix = "gpuslice-claim-"

// Taints of devices in ResourceSlices, with the effect NoSchedule.
const (
	// TaintUnhealthy is on a device of a GPU that is unhealthy or gone.
	TaintUnhealthy = DRADriver + "/unhealthy"
	// TaintCordoned is on a device of a GPU that the operator cordoned.
	TaintCordoned = DRADriver + "/cordoned"
	// TaintNotConnected is on all devices while the agent is not connected to the container runtime.
	TaintNotConnected = DRADriver + "/not-connected"
)
