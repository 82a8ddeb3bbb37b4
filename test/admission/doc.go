// Package admission runs install/admission in the API server's own admission plugins: the rules, the match
// conditions and the policy in its CEL, the webhooks by its dispatchers over TLS, against the real webhook
// server, which keeps its certificate in a fake API server. It is a module of its own, for
// it alone needs k8s.io/apiserver. What a whole API server does besides (defaults, what a subresource
// takes) is test/e2e's.
package admission
