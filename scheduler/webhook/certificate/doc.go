// Package certificate is what the webhook serves TLS with.
//
//	Files    a certificate and its key in two files that somebody else keeps (cert-manager, an
//	         operator's own tooling); a change is taken up without a restart
//	Keeper   our own authority and certificate in a Secret, renewed in time, and the webhook
//	         configurations' caBundle kept to it. Replicas share the Secret and agree by its
//	         resourceVersion
//
// What a Secret's content becomes next is a pure function (Bundle.Next). Of ours it imports
// nothing; package webhook uses it.
package certificate
