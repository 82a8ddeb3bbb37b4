package extender

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
)

// Find finds a pod by its name: kube.Feeding's. It is a NotFound error of the API server's if
// there is none.
type Find func(namespace, name string) (*scheduler.Pod, error)

// debugExplain answers /debug/explain?namespace=&pod= with an engine.Explanation, as JSON.
func debugExplain(e *engine.Engine, find Find, w http.ResponseWriter, r *http.Request) {
	namespace, name := r.URL.Query().Get("namespace"), r.URL.Query().Get("pod")
	if namespace == "" || name == "" {
		http.Error(w, "which pod? ask /debug/explain?namespace=NAMESPACE&pod=POD", http.StatusBadRequest)
		return
	}
	pod, err := find(namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		http.Error(w, fmt.Sprintf("pod %s/%s: there is none that runs or waits, as far as this scheduler knows", namespace, name), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(e.Explain(pod)) // whoever asked has gone
	}
}

var errNoFind = errors.New("this server was not told how to find pods")

func (s *Server) find(namespace, name string) (*scheduler.Pod, error) {
	if s.Find == nil {
		return nil, errNoFind
	}
	return s.Find(namespace, name)
}
