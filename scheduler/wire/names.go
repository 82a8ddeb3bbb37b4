// Package wire reads and writes the annotations of nodes and pods, ours and HAMi's, so that HAMi's scheduler
// works with our nodes and our scheduler with HAMi's. One limit on HAMi's nodes: its device plugin serves any
// pod in phase "allocating", so its scheduler binds one pod at a time under hami.io/mutex.lock. Ours does not
// take that lock: pods bound to one such node at the same time may get each other's GPUs.
package wire

const bindAllocating = "allocating"
