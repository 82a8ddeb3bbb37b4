package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/golden"
)

// sharedName is what other components and programs read: keys of annotations and labels, resources.
var sharedName = regexp.MustCompile(`^(/metadata/(annotations|labels)/)?([a-z0-9-]+\.)*(gpuslice\.io|hami\.io|4pd\.io|tencent\.com|volcano\.sh|nvidia\.com)(/|~1)[\w.-]+$`)

// ownNames are names within one program, and the version of a format.
var ownNames = map[string]string{
	"gpuslice.io/nominated":         "scheduler/extender",
	"gpuslice.io/pod-group":         "scheduler/plugin",
	"gpuslice.io/Request.Signature": "scheduler/plugin",
	"gpuslice.io/v1":                "scheduler/plugin",
}

// TestNamesAreInAPI: only package api has names that components share. Texts and comments may have them.
func TestNamesAreInAPI(t *testing.T) {
	cmd := exec.Command("git", "ls-files", "*.go")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	require.NoError(t, err)
	for file := range strings.Lines(string(out)) {
		file = strings.TrimSpace(file)
		dir := path.Dir(file)
		if strings.HasSuffix(file, "_test.go") || dir == "api" || strings.HasPrefix(dir, "test/") || strings.HasPrefix(dir, "testdata/") {
			continue
		}
		source, err := os.ReadFile("../../" + file)
		if os.IsNotExist(err) { // removed, and not committed yet
			continue
		}
		require.NoError(t, err)
		files := token.NewFileSet()
		tree, err := parser.ParseFile(files, file, source, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(tree, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			require.NoError(t, err)
			if sharedName.MatchString(text) && ownNames[text] != dir {
				t.Errorf("%v: %s belongs into package api", files.Position(literal.Pos()), literal.Value)
			}
			return true
		})
	}
}

const (
	policy      = "../../install/charts/gpuslice/templates/admission/policy.yaml"
	policyBegin = "  # api.Owned: made by test/layout\n"
	policyEnd   = "  - name: changed\n"
)

// TestPolicy: the annotations in the chart's admission policy are those of api.Owned.
func TestPolicy(t *testing.T) {
	var owned, prefixes []string
	for _, key := range api.Owned {
		if prefix, is := strings.CutSuffix(key, "*"); is {
			prefixes = append(prefixes, "'"+prefix+"'")
		} else {
			owned = append(owned, "'"+key+"'")
		}
	}
	list := "  - name: owned\n    expression: >-\n      [" + strings.Join(owned, ",\n      ") + "]\n" +
		"  - name: prefixes\n    expression: \"[" + strings.Join(prefixes, ", ") + "]\"\n"
	golden.Section(t, policy, policyBegin, policyEnd, list)
}
