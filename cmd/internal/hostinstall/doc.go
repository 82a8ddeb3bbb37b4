// Package hostinstall puts gpuslice into the configuration of a host's container
// engines (docker, containerd, podman) and takes it out again. The commands
// "gpuslice install" and "gpuslice uninstall" are its callers.
//
// What is decided is pure: a plan ([plan], of planDocker and its like) is made of
// what files hold, and names settings; a [document] edits the text of one file, so
// that comments, order and layout stay, and proves each edit: the text is parsed
// again and compared with what was meant. What was changed is kept in a [record],
// by which uninstall takes out just that. Only host.go and write.go touch files.
package hostinstall
