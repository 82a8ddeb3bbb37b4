// Package quota counts what namespaces may have of GPUs, and what they have. It has two
// kinds of quota: Kubernetes' ResourceQuota on memory and cores, which Kubernetes can't
// count itself, for it doesn't know that a container asks for so much of each of its GPUs;
// and gpu-manager's, of GPUs by namespace, model and pool, from a ConfigMap.
//
// What is used is counted from placements and reservations, and nothing else, so that it
// is the same after a restart. A pod is charged as Kubernetes counts its resources: see Of.
//
// # How the engine uses it
//
// A Book is under the engine's lock. Accounts are values that never change:
//
//	book.SetLimits(namespace, name, limits)        a ResourceQuota came or changed: FromHard
//	book.DropLimits(namespace, name)               or went
//	book.SetGPUs(GPUs)                           the ConfigMap came, changed (ParseGPUs) or
//	                                               went (nil); not called where it is malformed
//	book.Charge(namespace, uid, Of(…))             a pod was placed, or reserved; again with
//	                                               the same uid: in place of the former charge
//	book.Refund(uid)                               it ended, or its reservation did
//
//	account := book.View(namespace)                one look-up per pod that is evaluated
//	account.Limited()                              false: nothing more to ask
//	account.Check(Asked(r, "", 0))                 no node has room where this says no
//	account.Check(Asked(r, "", smallest GPU))     and, where memory is by percent, this node
//	account.CheckNode(node.Labels, Asked(r, …))    gpu-manager's pools and models, by node
//	account.Minus(victim).Check(…)                 preemption
//
// Reserve asks Check and CheckNode again with Of(the placement itself), under the lock:
// that is exact. When a node's model label changes, the engine charges the node's pods again.
//
// It imports grant, request and scheduler.
package quota
