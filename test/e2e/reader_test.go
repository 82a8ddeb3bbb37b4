//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/docs/pages"
	"github.com/gpuslice/gpuslice/test/harness"
	"github.com/gpuslice/gpuslice/test/kube"
)

// What is known of the documents' commands for a cluster. They are run as they stand, but for
// this; what none of them needs any more fails TestCommandsOfTheDocs.
var (
	// readBy are the pages, or sections (page#section), that another test than TestCommandsOfTheDocs reads.
	readBy = map[string]string{
		"docs/UPGRADING.md#Upgrade":     "TestUpgradeAndRollback",
		"docs/UPGRADING.md#Rollback":    "TestUpgradeAndRollback",
		"docs/UPGRADING.md#Uninstall":   "TestUninstallAndInstallAgain",
		"docs/INSTALL.md":               "TestUninstallAndInstallAgain",
		"docs/QUICKSTART-KUBERNETES.md": "TestUninstallAndInstallAgain",
		"docs/VERIFY.md":                "TestVerify",
	}

	// needs are pages with commands for a newer Kubernetes than the oldest supported one.
	needs = map[string]kube.Since{"docs/DRA.md": kube.DRA}

	// words are what stands for something of the reader's. Pods and images of the documents' names are there as they are
	// called: train of the namespace team-a, registry.example/gpuslice.
	words = []string{"AGENT-POD", "POD", "NODE GPU", "NODE", "NEW", "/tmp/gs…"}

	// named are commands that a text names without what they need, such as an installation of HAMi: their help is asked for.
	named = []string{
		"kubectl gpuslice", "kubectl gpuslice resize", "kubectl gpuslice drain", "kubectl gpuslice uncordon", "kubectl describe pod",
		"kubectl gpuslice migrate hami", "kubectl gpuslice migrate hami --node NODE", "kubectl gpuslice migrate hami --all --undo", "kubectl label node --selector gpu=on hami=on",
		"helm install", "helm uninstall", "helm template", "helm upgrade", "helm upgrade --install", "helm test", "kubectl apply", "kubectl drain", "kubectl delete runtimeclass nvidia",
	}

	// remaining is the section with the commands for what an uninstall leaves.
	remaining = "docs/INSTALL.md#Uninstall"

	// besides are beginnings of commands that aren't kubectl's or helm's, and run with those of their block.
	besides = []string{"openssl genpkey ", "openssl pkey ", "cat old.pub ", "cat new.pem ", "rm old.pem "}

	// notRun are the beginnings of commands that are not run, and why.
	notRun = map[string]string{
		"make image":                       "the suite's image was made so",
		"skopeo ":                          "there is no registry; the image is given that name on the node",
		"gpuslice ":                        "on the node itself: test/slice, test/docker and the CLI's own tests",
		"kubectl exec slice -- nvidia-smi": "it is NVIDIA's program, of the driver",
	}

	// tried are the beginnings of commands that the API server runs dry, and why.
	tried = map[string]string{
		"kubectl apply -k install/scheduler":               "it would take the ClusterRoles of the release's scheduler",
		"kubectl apply -f install/scheduler/extender.yaml": "the same",
		"kubectl apply -f install/admission/":              "it would take the release's webhook configurations and policies",
		"helm upgrade gpuslice install/charts/gpuslice -n gpuslice-system --reuse-values --set dra.enabled=true": "the node's pods have their GPUs by the device plugin",
	}

	// forwarded are commands that don't end: the page at the port is asked for, and they are ended.
	forwarded = regexp.MustCompile(`^kubectl .*\bport-forward .* ([0-9]+)$`)

	// ofACluster is a command that wants one, wherever it stands in a line.
	ofACluster = regexp.MustCompile(`(^|[\s|;&(])(kubectl|helm)\s`)
)

// beginsWith is the first of the beginnings that a command has.
func beginsWith[V any](text string, beginnings map[string]V) (beginning string, found bool) {
	for beginning := range beginnings {
		if strings.HasPrefix(text, beginning) {
			return beginning, true
		}
	}
	return "", false
}

// isBesides reports whether a command runs with those of its block.
func isBesides(text string) bool {
	for _, beginning := range besides {
		if strings.HasPrefix(text, beginning) {
			return true
		}
	}
	return false
}

// reads returns the name of the test that runs a block's commands.
func reads(b pages.Block) string {
	for _, place := range []string{b.Page + "#" + b.Section, b.Page} {
		if test, is := readBy[place]; is {
			return test
		}
	}
	return "TestCommandsOfTheDocs"
}

// blocksOfClusters are all blocks with a command for a cluster.
func blocksOfClusters(t *testing.T) (found []pages.Block) {
	texts, err := pages.Read()
	require.NoError(t, err)
	for page, text := range texts {
		for _, b := range pages.Blocks(page, text) {
			for _, c := range b.Commands {
				if ofACluster.MatchString(c.Text) {
					found = append(found, b)
					break
				}
			}
		}
	}
	require.NotEmpty(t, found)
	return found
}

// inTexts are the commands in the text of the pages, each once: those of one section, or those of all
// sections but remaining.
func inTexts(t *testing.T, place string) (found []pages.Command) {
	texts, err := pages.Read()
	require.NoError(t, err)
	seen := map[string]bool{}
	delete(texts, "docs/configuration/plugin.md") // forms of commands, generated
	for _, page := range slices.Sorted(maps.Keys(texts)) {
		for _, c := range pages.Inline(page, texts[page], "kubectl", "helm") {
			its := c.Page + "#" + c.Section
			if is := its == place || place == "" && its != remaining; is && !seen[c.Text] {
				found, seen[c.Text] = append(found, c), true
			}
		}
	}
	require.NotEmpty(t, found)
	return found
}

// blocksOf are those of a page, or of one of its sections, that this test reads.
func blocksOf(t *testing.T, place string) []pages.Block {
	test, _, _ := strings.Cut(t.Name(), "/")
	require.Equal(t, test, readBy[place], "the test that reads %s", place)
	return blocksAt(t, place)
}

// blocksAt are those of a page, or of one of its sections.
func blocksAt(t *testing.T, place string) (found []pages.Block) {
	page, section, _ := strings.Cut(place, "#")
	for _, b := range blocksOfClusters(t) {
		if b.Page == page && (section == "" || b.Section == section) {
			found = append(found, b)
		}
	}
	require.NotEmpty(t, found, "%s has no commands", place)
	return found
}

// reader types the commands of the documents, as the cluster's administrator in a directory that has
// install/.
type reader struct {
	t     *testing.T
	shell func(ctx context.Context, script string) (string, error)
	dir   string
	// words is what each of words stands for.
	words map[string]string
}

func newReader(t *testing.T, words map[string]string) *reader {
	root, err := harness.Repository()
	require.NoError(t, err)
	shell, err := cluster.Shell()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Symlink(filepath.Join(root, "install"), filepath.Join(dir, "install")))
	return &reader{t: t, shell: shell, dir: dir, words: words}
}

var anyWord = regexp.MustCompile(strings.Join(words, "|")) // the longest first

// does types a block's commands in one shell, and returns their output.
func (r *reader) does(b pages.Block) string {
	r.t.Helper()
	// A command that fails is named.
	script := "cd " + r.dir + "\ntrap 'echo \"failed: $BASH_COMMAND\"' ERR\n"
	for _, c := range b.Commands {
		if beginning, not := beginsWith(c.Text, notRun); not {
			r.t.Logf("not run: %s: %s", c.Text, notRun[beginning])
			continue
		}
		script += r.asRun(c.Text) + "\n"
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := r.shell(ctx, script)
	require.NoError(r.t, err, "%s:%d: %s\n%s", b.Page, b.Line, script, out)
	r.t.Logf("%s:%d\n%.2000s", b.Page, b.Line, out)
	return out
}

// doesInText types what stands in a text, each by itself.
func (r *reader) doesInText(all []pages.Command) {
	r.t.Helper()
	for _, c := range all {
		if slices.Contains(named, c.Text) {
			c.Text += " --help"
		}
		out := r.does(pages.Block{Page: c.Page, Line: c.Line, Commands: []pages.Command{c}})
		require.NotEmpty(r.t, strings.TrimSpace(out), "%s:%d: %s prints nothing", c.Page, c.Line, c.Text)
	}
}

// asRun is a command as it is run.
func (r *reader) asRun(text string) string {
	text = anyWord.ReplaceAllStringFunc(text, func(word string) string {
		require.NotEmpty(r.t, r.words[word], "%s: this test has nothing for %s", text, word)
		return r.words[word]
	})
	if _, only := beginsWith(text, tried); only {
		return text + " --dry-run=server"
	}
	if port := forwarded.FindStringSubmatch(text); port != nil {
		return fmt.Sprintf("%s & forward=$!\nuntil curl --silent --fail --max-time 10 http://localhost:%s/; do kill -0 $forward; sleep 0.1; done\nkill $forward", text, port[1])
	}
	return text
}
