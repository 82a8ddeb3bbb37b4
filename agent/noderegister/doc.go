// Package noderegister publishes a node's GPUs to schedulers, as annotations and labels of its Node object.
// Containers and the kubelet do not depend on it.
//
// HAMi's schedulers before 2.10 read the GPUs only after an answer in hami.io/node-handshake, and remove them
// after 60 seconds without one. So a stopped agent writes its devices as unhealthy, and an overdue request.
//
// Each interval reads the node's metadata from the API server's cache and writes the difference: this repairs
// failed patches and foreign changes. A watch would wake up at each of the kubelet's updates and require more
// permissions. Typed clients would take 9 MB more memory than the metadata client.
package noderegister
