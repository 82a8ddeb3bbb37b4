// Package certificate provides the TLS certificate of the webhook: Files reloads one from two
// files, Keeper manages an authority and a certificate in a Secret that all replicas share, and
// writes the caBundle of the webhook configurations.
package certificate
