package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/clidoc"
	"github.com/gpuslice/gpuslice/test/golden"
)

const reference = "../../docs/configuration/scheduler.md"

const referenceHead = `# The scheduler's options

` + "`gpuslice-scheduler`" + ` without a command is kube-scheduler with the plugin. It has kube-scheduler's options, and
` + "`--debug-address`" + ` (default 127.0.0.1:10261; empty: disabled), where it serves pages about GPUs and pods. The plugin's
settings are its args in the KubeSchedulerConfiguration (` + "`install/scheduler/config.yaml`" + `). ` + "`extender`" + ` and ` + "`webhook`" + ` read
the same file with ` + "`--config`" + `.
`

// `make generate` writes the reference.
func TestReference(t *testing.T) {
	var page strings.Builder
	page.WriteString("<!-- Generated from the code by `make generate`. -->\n" + referenceHead)
	page.WriteString("\n## GPUSliceArgs\n\n`apiVersion: gpuslice.io/v1`, `kind: GPUSliceArgs`.\n\n| field | what |\n|---|---|\n")
	types := parseTypes(t, "../../scheduler/plugin/args.go")
	fields(t, &page, types, "Args", "")
	for _, c := range subcommands() {
		_, table, _ := strings.Cut(clidoc.Reference(c, "", nil), "\n")
		page.WriteString(strings.ReplaceAll(table, "## `", "## `gpuslice-scheduler "))
	}
	golden.Check(t, reference, page.String())
}

// parseTypes returns the structs of a file with their comments.
func parseTypes(t *testing.T, path string) map[string]*ast.StructType {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	require.NoError(t, err)
	found := map[string]*ast.StructType{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if s, ok := spec.Type.(*ast.StructType); ok {
				found[spec.Name.Name] = s
			}
		}
		return true
	})
	require.Contains(t, found, "Args")
	return found
}

// fields writes a row for each field of a struct. A field without a comment gets the previous one.
func fields(t *testing.T, page *strings.Builder, types map[string]*ast.StructType, name, prefix string) {
	comment := ""
	for _, f := range types[name].Fields.List {
		if len(f.Names) == 0 || f.Tag == nil {
			continue // TypeMeta
		}
		if text := strings.TrimSpace(f.Doc.Text()); text != "" {
			comment = strings.ReplaceAll(text, "\n", " ")
		}
		tag, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
		require.NotEmpty(t, tag)
		fmt.Fprintf(page, "| `%s%s` | %s |\n", prefix, tag, comment)
		if kind, ok := f.Type.(*ast.Ident); ok && types[kind.Name] != nil {
			fields(t, page, types, kind.Name, prefix+tag+".")
		}
	}
}
