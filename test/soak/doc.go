// Package soak has a node's life in short: thousands of containers of Kubernetes' way and of
// docker's come and go on shared GPUs, while every program that takes part is killed at
// random moments; first all of them, then all but the agent, which is looked at for what
// grows. In the end nothing may be left: no claim, directory, mount, process or control group.
//
//	go test ./test/soak                              a hundred and fifty, in `make test`
//	make soak                                        10,000
//	go test ./test/soak -lifecycles=N -seed=S        as many as you like; the same choices again
package soak
