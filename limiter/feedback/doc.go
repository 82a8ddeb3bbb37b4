// Package cores is the slow half of the shares of compute time. The limiter in the
// containers lets launches through by what it estimates that they cost; this package
// looks every second, by NVML, how much of each GPU's time each container really
// had, and writes into the containers' limits files
//
//   - whether others use the GPU too (a share of the default policy is then enforced),
//   - whether a container has to stand back for one of higher priority,
//   - by which factor its share is to be corrected, for estimates are off: the time
//     between two events is inflated by other tenants' turns,
//   - how far a share with a soft ceiling reaches for now.
//
// What a container writes about itself is used for one thing, whether it wants more
// than it has, and that concerns its own share alone, within what NVML sees. Which
// priority it has, whether it is active and whether a GPU is contended is the
// host's own knowledge.
//
// Decide is all of the thinking, and pure; the rest reads and writes.
package feedback
