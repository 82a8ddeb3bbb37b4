// Package admission runs install/admission in the API server's own admission plugins: the rules, the match
// conditions and the policy in its CEL, the webhooks by its dispatchers over TLS. The webhook server is the
// real one, and keeps its certificate in a fake API server. The package has its own module, because only it
// needs k8s.io/apiserver. test/e2e tests the other work of an API server (defaults, which fields a
// subresource accepts).
package admission
