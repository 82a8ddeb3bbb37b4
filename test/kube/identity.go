package kube

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// User is the identity of a client of the API server.
type User struct {
	Name   string
	Groups []string
}

// The users that a cluster knows from its start.
var (
	Admin             = User{"admin", []string{"system:masters"}}
	ControllerManager = User{"system:kube-controller-manager", nil}
	StockScheduler    = User{"system:kube-scheduler", nil}
	KubeProxy         = User{"system:kube-proxy", nil}
	// Tenant may do in the tests' namespaces what Kubernetes' role admin allows.
	Tenant = User{"tenant", nil}
)

// KubeletOf is the user that the kubelet of a node is.
func KubeletOf(node string) User { return User{"system:node:" + node, []string{"system:nodes"}} }

// ServiceAccount is the user that a service account is.
func ServiceAccount(namespace, name string) User {
	return User{"system:serviceaccount:" + namespace + ":" + name, []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}}
}

// identities are the cluster's certificates and its users' tokens.
type identities struct {
	dir    string
	server string
	ca     []byte
	tokens map[string]string // by the user's name
}

// newIdentities writes certificates for the API server at that address, the key of
// service accounts, and the tokens of the users.
func newIdentities(dir, ip, server string, users ...User) (*identities, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	i := &identities{dir: dir, server: server, tokens: map[string]string{}}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "gpuslice-test"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	if i.ca, err = i.writeCertificate("ca.crt", ca, ca, caKey.Public(), caKey); err != nil {
		return nil, err
	}
	for n, name := range []string{"apiserver", "service-accounts"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		_, err = i.writeCertificate(name+".crt", &x509.Certificate{
			SerialNumber: big.NewInt(int64(n) + 2), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.ParseIP(ip), net.ParseIP(apiService)}, DNSNames: []string{"kubernetes.default.svc"},
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		}, ca, key.Public(), caKey)
		if err := errors.Join(err, i.writeKey(name+".key", key)); err != nil {
			return nil, err
		}
	}
	return i, i.writeTokens(users)
}

func (i *identities) path(name string) string { return filepath.Join(i.dir, name) }

func (i *identities) writeCertificate(name string, template, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return text, os.WriteFile(i.path(name), text, 0o600)
}

func (i *identities) writeKey(name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(i.path(name), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

// writeTokens writes the API server's --token-auth-file.
func (i *identities) writeTokens(users []User) error {
	var csv bytes.Buffer
	for _, u := range users {
		secret := make([]byte, 16)
		if _, err := rand.Read(secret); err != nil {
			return err
		}
		i.tokens[u.Name] = hex.EncodeToString(secret)
		fmt.Fprintf(&csv, "%s,%s,%s,%q\n", i.tokens[u.Name], u.Name, u.Name, strings.Join(u.Groups, ","))
	}
	return os.WriteFile(i.path("tokens.csv"), csv.Bytes(), 0o600)
}

// kubeconfig writes a user's kubeconfig and returns its path.
func (i *identities) kubeconfig(u User) (string, error) {
	token, known := i.tokens[u.Name]
	if !known {
		return "", fmt.Errorf("no user %q: there are %s", u.Name, strings.Join(slices.Sorted(maps.Keys(i.tokens)), ", "))
	}
	path := i.path(strings.ReplaceAll(u.Name, ":", "-") + ".kubeconfig")
	return path, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: test, user: {token: %q}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
`, i.server, i.path("ca.crt"), token), 0o600)
}
