package noderegister

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/rest"
)

// apiServer speaks of the API what the publisher needs: one node's metadata, merge
// patches, the writers. It is an http.Handler, and a RoundTripper without a network,
// for time that is played.
type apiServer struct {
	t  *testing.T
	mu sync.Mutex

	node *metav1.PartialObjectMetadata
	// down refuses connections; refuse answers calls by verb, or verb and resource, with a status.
	down   bool
	refuse map[string]metav1.StatusReason

	capacity []string // patches of the status

	calls   []call
	headers http.Header // of the last call
}

type call struct{ verb, resource, query, body string }

const nodeName = "gpu-7"

func newAPIServer(t *testing.T) *apiServer {
	return &apiServer{t: t, refuse: map[string]metav1.StatusReason{}, node: &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
		ObjectMeta: metav1.ObjectMeta{
			Name: nodeName, UID: "u-1", ResourceVersion: "1",
			Labels: map[string]string{"kubernetes.io/hostname": nodeName}, Annotations: map[string]string{"node.alpha.kubernetes.io/ttl": "0"},
		},
	}}
}

// client is the true client, on this server.
func (s *apiServer) client() Client {
	c, err := NewClient(&rest.Config{Host: "http://api.test", Transport: s}, FieldManager)
	require.NoError(s.t, err)
	return c
}

func (s *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	down := s.down
	s.mu.Unlock()
	if down {
		return nil, errors.New("connect: connection refused")
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Result(), nil
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	resource, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/")
	name, subresource, _ := strings.Cut(name, "/")
	if subresource != "" {
		resource += "/" + subresource
	}
	verb := map[string]string{http.MethodGet: "get", http.MethodPatch: "patch"}[r.Method]
	s.calls = append(s.calls, call{verb, resource, r.URL.RawQuery, string(body)})
	s.headers = r.Header
	reason := cmp.Or(s.refuse[verb], s.refuse[verb+" "+resource])
	if s.node == nil || name != s.node.Name {
		reason = metav1.StatusReasonNotFound
	}
	if reason != "" {
		s.reply(w, codes[reason], metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status:   metav1.StatusFailure, Reason: reason, Code: int32(codes[reason]), Message: "refused: " + string(reason),
		})
		return
	}
	if verb == "patch" {
		if subresource == "" {
			require.Equal(s.t, "application/merge-patch+json", r.Header.Get("Content-Type"))
			s.apply(body, r.URL.Query().Get("fieldManager"))
		} else {
			require.Equal(s.t, "application/strategic-merge-patch+json", r.Header.Get("Content-Type"))
			s.capacity = append(s.capacity, string(body))
		}
	}
	// As an API server does, by the first type that is accepted.
	if strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		require.NoError(s.t, inProtobuf.Encode(s.node, w))
		return
	}
	s.reply(w, http.StatusOK, s.node)
}

var inProtobuf = protobuf.NewSerializer(runtime.NewScheme(), runtime.NewScheme())

var codes = map[metav1.StatusReason]int{
	metav1.StatusReasonUnauthorized: 401, metav1.StatusReasonForbidden: 403, metav1.StatusReasonNotFound: 404,
	metav1.StatusReasonConflict: 409, metav1.StatusReasonInternalError: 500,
}

func (s *apiServer) reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	require.NoError(s.t, json.NewEncoder(w).Encode(body))
}

// apply is a merge patch of labels and annotations by a manager.
func (s *apiServer) apply(body []byte, manager string) {
	var patch struct {
		Metadata struct {
			Labels, Annotations map[string]*string
		}
	}
	require.NoError(s.t, json.Unmarshal(body, &patch))
	for key, value := range patch.Metadata.Labels {
		s.set(manager, s.node.Labels, "f:labels", key, value)
	}
	for key, value := range patch.Metadata.Annotations {
		s.set(manager, s.node.Annotations, "f:annotations", key, value)
	}
}

// set writes a key as a manager, and takes it from the others' records.
func (s *apiServer) set(manager string, in map[string]string, kind, key string, value *string) {
	if value == nil {
		delete(in, key)
	} else {
		in[key] = *value
	}
	type fields map[string]map[string]map[string]struct{}
	found := false
	for i, entry := range s.node.ManagedFields {
		var set fields
		require.NoError(s.t, json.Unmarshal(entry.FieldsV1.GetRawBytes(), &set))
		delete(set["f:metadata"][kind], "f:"+key)
		if entry.Manager == manager {
			found = true
			if value != nil {
				set["f:metadata"][kind]["f:"+key] = struct{}{}
			}
		}
		s.node.ManagedFields[i].FieldsV1 = rawFields(s.t, set)
	}
	if found || value == nil {
		return
	}
	set := fields{"f:metadata": {"f:labels": {}, "f:annotations": {}}}
	set["f:metadata"][kind]["f:"+key] = struct{}{}
	s.node.ManagedFields = append(s.node.ManagedFields, metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsType: "FieldsV1", FieldsV1: rawFields(s.t, set),
	})
}

func rawFields(t *testing.T, set any) *metav1.FieldsV1 {
	data, err := json.Marshal(set)
	require.NoError(t, err)
	return metav1.NewFieldsV1(string(data))
}

// label and annotate write as another writer.
func (s *apiServer) label(manager, key, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(manager, s.node.Labels, "f:labels", key, &value)
}

func (s *apiServer) annotate(key, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set("kube-scheduler", s.node.Annotations, "f:annotations", key, &value)
}

// remove removes a label and an annotation, as another writer.
func (s *apiServer) remove(label, annotation string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set("kubectl", s.node.Labels, "f:labels", label, nil)
	s.set("kubectl", s.node.Annotations, "f:annotations", annotation, nil)
}

func (s *apiServer) fail(verb string, reason metav1.StatusReason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse[verb] = reason
}

func (s *apiServer) setDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// count is how many calls of a verb came in.
func (s *apiServer) count(verb string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.calls {
		if c.verb == verb {
			n++
		}
	}
	return n
}

// now returns the node.
func (s *apiServer) now() Metadata {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.node.DeepCopy()
	return Metadata{Labels: c.Labels, Annotations: c.Annotations}
}
