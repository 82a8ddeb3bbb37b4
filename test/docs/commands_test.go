package docs

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/test/docs/pages"
	"github.com/gpuslice/gpuslice/test/harness"
)

// runElsewhere are pages with commands that another suite runs in sequence, on a larger setup.
var runElsewhere = map[string]string{
	"docs/QUICKSTART-KUBERNETES.md": "test/e2e",
}

// notRun are the beginnings of commands that no test runs as they stand, and why.
var notRun = map[string]string{
	"systemctl ":                     "a machine's services are not a test's",
	"nvidia-ctk ":                    "NVIDIA's toolkit is not here",
	"journalctl ":                    "a machine's journal is not a test's",
	"od ":                            "looks at a container's files by an offset; the layout's test has the offsets",
	"i=0; od ":                       "the same",
	"grep ":                          "looks at the machine's locks",
	"LD_PRELOAD=":                    "the reader's own program",
	"SIMGPU_STATE=":                  "test/simdriver does the same by its API",
	"build/sim/simctl ":              "test/simdriver does the same by its API",
	"export GOFLAGS=":                "a setting of the reader's shell, the Makefile's",
	"build/bin/gpuslice-agent ":      "test/node runs agents with a directory of their own",
	"openssl ":                       "test/e2e runs it with the commands around it, where a cluster's key is replaced",
	"cat ":                           "the same",
	"rm old.pem ":                    "the same",
	"git ":                           "the reader's clone",
	"ln -s ":                         "the reader's PATH",
	"install build/bin/":             "the reader's PATH",
	"skopeo ":                        "there is no registry",
	"restorecon ":                    "the same",
	"cp install/run-gpuslice.mount ": "TestSELinuxMount",
	"sed -i 's/^Options=":            "TestSELinuxMount does it to a copy",
	"semanage ":                      "a machine's SELinux is not a test's",
	"mkdir -p /var/lib/gpuslice":     "the same, and the machine's directories",
}

// clusters are programs that want a cluster. Their commands test/e2e runs as they stand
// (TestCommandsOfTheDocs, which knows of each one); here the files that they name are looked for.
var clusters = []string{"kubectl ", "helm "}

// What a page shows as a command is run by a test, or at least there as it is written: the
// target of make, the options of gpuslice, the file that is applied.
func TestEveryCommandIsKnown(t *testing.T) {
	known := 0
	for page, text := range documents(t) {
		for _, c := range pages.Commands(page, text) {
			known++
			at := func(why string) { t.Errorf("%s:%d: %s: %s", c.Page, c.Line, c.Text, why) }
			if strings.Contains(c.Text, "||") {
				at("a failure of the command is hidden: remove what is after ||")
			}
			if isRunHere(c) || runElsewhere[page] != "" {
				continue
			}
			for one := range strings.SplitSeq(c.Text, "&&") {
				for _, why := range unknown(t, strings.TrimSpace(one)) {
					at(why)
				}
			}
		}
	}
	require.Greater(t, known, 20)
}

// unknown is what is wrong with one command that no test runs as it stands.
func unknown(t *testing.T, text string) (reasons []string) {
	program, _, _ := strings.Cut(text, " ")
	switch {
	case isNotRun(text):
	case program == "make":
		if _, err := harness.Run(context.Background(), nil, "make", append([]string{"-C", root, "-n"}, strings.Fields(text)[1:]...)...); err != nil {
			reasons = append(reasons, "no such target")
		}
	case program == "go":
		// go test ./directory -flags: the directory is there.
		for _, word := range strings.Fields(text) {
			if strings.HasPrefix(word, "./") {
				if _, err := os.Stat(filepath.Join(root, strings.TrimSuffix(word, "..."))); err != nil {
					reasons = append(reasons, err.Error())
				}
			}
		}
	case isGpuslice(text):
		reasons = unknownOptions(t, text)
	case wantsCluster(text):
		for _, path := range applied.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, path[1])); err != nil {
				reasons = append(reasons, err.Error())
			}
		}
	case program == "docker" || program == "podman":
		// Run with other names and images in test/docker and test/slice.
		if !engineCommand.MatchString(text) {
			reasons = append(reasons, "no test runs the like")
		}
	default:
		reasons = append(reasons, "no test runs it: give it one, or a reason in notRun")
	}
	return reasons
}

var engineCommand = regexp.MustCompile(`--runtime|--device|exec|rm|import|build`)

func isRunHere(c pages.Command) bool {
	return runHere[c.Page] != nil || runHere[c.Page+"#"+c.Section] != nil
}

func isNotRun(text string) bool {
	for beginning := range notRun {
		if strings.HasPrefix(text, beginning) {
			return true
		}
	}
	return false
}

func wantsCluster(text string) bool {
	for _, program := range clusters {
		if strings.HasPrefix(text, program) {
			return true
		}
	}
	return false
}

// applied are files of the repository in a command.
var applied = regexp.MustCompile(`(?:-f|-k|--filename|upgrade --install \S+|helm install \S+) (install/\S+)`)

func isGpuslice(text string) bool {
	return gpusliceCommand.MatchString(text)
}

var (
	gpusliceCommand = regexp.MustCompile(`^(build/bin/|kubectl )?gpuslice(-runtime)? `)
	optionWord      = regexp.MustCompile(`(?:^|\s)(--[a-z][a-z-]*)`)
)

// unknownOptions are those of a command of gpuslice that its help doesn't have, or the
// command itself.
func unknownOptions(t *testing.T, text string) (reasons []string) {
	name := "gpuslice"
	if strings.HasPrefix(text, "kubectl ") {
		name = "kubectl-gpuslice"
	}
	program, err := harness.Artefact("bin", name)
	require.NoError(t, err)
	text, _, _ = strings.Cut(text, " -- ") // what follows is another program's
	words := strings.Fields(gpusliceCommand.ReplaceAllString(text, ""))
	// Words up to the first that is no name of a command: cobra takes the rest as arguments.
	var path []string
	for _, word := range words {
		if !commandName.MatchString(word) {
			break
		}
		path = append(path, word)
	}
	help, err := harness.Run(context.Background(), nil, program, append(path, "--help")...)
	if err != nil {
		return []string{err.Error()}
	}
	if why := unknownArgument(help, path); why != "" {
		reasons = append(reasons, why)
	}
	for _, option := range optionWord.FindAllStringSubmatch(text, -1) {
		if option[1] != "--help" && option[1] != "--version" && !strings.Contains(help, option[1]+" ") && !strings.Contains(help, option[1]+"\n") {
			reasons = append(reasons, "no option "+option[1])
		}
	}
	return reasons
}

// unknownArgument compares the words after a command's name with its usage, the help of which was printed for any words.
func unknownArgument(help string, words []string) string {
	usage := regexp.MustCompile(`(?m)^Usage:\n  (?:kubectl )?gpuslice ?(.*)$`).FindStringSubmatch(help)
	if usage == nil {
		return "no usage in the help"
	}
	takes := strings.Fields(strings.ReplaceAll(usage[1], "[flags]", ""))
	for len(words) > 0 && len(takes) > 0 && words[0] == takes[0] {
		words, takes = words[1:], takes[1:]
	}
	for _, word := range words {
		if len(takes) == 0 {
			return "no argument or command " + word
		}
		choices := strings.Split(strings.Trim(takes[0], "[]."), "|")
		if commandName.MatchString(choices[0]) && !slices.Contains(choices, word) {
			return word + " is none of " + takes[0]
		}
	}
	return ""
}

var commandName = regexp.MustCompile(`^[a-z]+$`)

func TestUnknownArgument(t *testing.T) {
	const doctor, resize, status = "Usage:\n  gpuslice doctor [kubernetes|docker|podman]... [flags]\n", "Usage:\n  gpuslice resize CONTAINER | NAMESPACE/POD[:CONTAINER] [flags]\n", "Usage:\n  gpuslice status [flags]\n"
	for _, test := range []struct{ help, words, want string }{
		{doctor, "doctor", ""}, {doctor, "doctor docker", ""}, {doctor, "doctor runtime", "runtime is none of [kubernetes|docker|podman]..."},
		{resize, "resize train", ""}, {status, "status", ""}, {status, "status foo", "no argument or command foo"},
	} {
		assert.Equal(t, test.want, unknownArgument(test.help, strings.Fields(test.words)), test.words)
	}
}

// A line that begins with the name of one of these programs is a command. After "$ " it is a screen, which
// the test of its program generates again.
var programs = regexp.MustCompile(`(?m)^ {0,4}(sudo )?(make|go (test|build|run)|(build/bin/)?gpuslice(-agent|-runtime)?|kubectl|helm|docker|podman|systemctl) [a-z-]`)

// Commands stand in blocks of "sh", where they are looked at.
func TestCommandsAreMarked(t *testing.T) {
	for page, text := range documents(t) {
		if strings.HasPrefix(page, "docs/configuration/") {
			continue // forms of commands, generated
		}
		for _, block := range fencePattern.FindAllString(text, -1) {
			if strings.Contains(block, "```sh\n") || strings.Contains(block, "```\n$ ") {
				continue // commands; a screen, with its command in the first line
			}
			assert.NotRegexp(t, programs, block, "%s: commands in a block without sh", page)
		}
	}
}
