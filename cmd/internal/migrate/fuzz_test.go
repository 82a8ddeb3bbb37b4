package migrate

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stretchr/testify/assert"

	"github.com/gpuslice/gpuslice/api"
)

// A person can edit a node's record: it is one of a known migration, or an error.
func FuzzRecordOf(f *testing.F) {
	for _, text := range []string{"", "{}", `{"from":"hami"}`, `{"from":"hami","label":"gpu"`, `[]`, `null`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := RecordOf(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Annotations: map[string]string{api.AnnotationMigration: text}}})
		if err == nil {
			assert.Contains(t, []Source{HAMi, Tencent}, r.From)
		} else {
			assert.Nil(t, r)
		}
	})
}
