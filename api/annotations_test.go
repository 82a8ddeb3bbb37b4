package api

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each annotation of gpuslice is known where containers are refused for unknown ones, except those of other objects. A
// container without Kubernetes is refused for AnnotationIsolation, because nothing there compares it.
func TestEveryAnnotationIsKnown(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "annotations.go", nil, 0)
	require.NoError(t, err)
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		literal, is := n.(*ast.BasicLit)
		if !is || literal.Kind != token.STRING {
			return true
		}
		key, err := strconv.Unquote(literal.Value)
		require.NoError(t, err)
		others := []string{prefix, AnnotationNodeGPUs, AnnotationNodeRefused, AnnotationDefragCordon, AnnotationMigration, AnnotationQuotaPool, AnnotationIsolation}
		if strings.HasPrefix(key, prefix) && !slices.Contains(others, key) {
			found++
			assert.False(t, IsUnknown(key), key)
		}
		return true
	})
	assert.Greater(t, found, 15)
	assert.True(t, IsUnknown("gpuslice.io/mem"))
}
