package limiter

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/internal/vgpufs"
)

// A process of a container can lock the files of its claim, and hold leases on them. So
//
//   - the paths of these files, and of their directory, are given to package limiter, and to
//     calls that open nothing,
//   - outside of package limiter nothing joins such a path itself,
//   - in package limiter only open.go opens files,
//   - in open.go only openPatiently, for a Holder's own goroutine, opens without O_NONBLOCK,
//   - nothing anywhere waits in flock: each has LOCK_NB.

// claimFiles are the functions of package limiter that return such a path.
var claimFiles = []string{"FilesDir", "LimitsPath", "UsagePath", "TurnPath"}

// harmless are the calls outside of package limiter that may have such a path: none opens it.
// Residue and Usage are those of a limiter.Reader, InUse is limiter.UsageInUse.
var harmless = []string{"os.Lstat", "unix.Lstat", "unix.Stat", "os.Rename", "filepath.Base", "filepath.Dir", "exists", "r.Residue", "r.Usage", "j.InUse"}

// identities are the functions that have such a path to compare it with mounts, to look at
// it or to make it. They open nothing that is there.
var identities = []string{
	"monitor/audit/snapshot.go usageFile", "monitor/audit/inspect.go expected", "limiter/feedback/loop.go Once", "oci/mounts.go limiterMounts", "oci/mounts.go turnMounts",
	"oci/populate.go makePlaces", "oci/recover.go RecoverClaim", "oci/runtime/create.go mountsLimits",
}

// opens are calls that open a file or wait for a lease on it.
var opens = []string{
	"os.Open", "os.OpenFile", "os.Create", "os.ReadFile", "os.WriteFile", "os.Truncate", "os.CopyFS", "os.CreateTemp",
	"unix.Open", "unix.Openat", "unix.Openat2", "unix.Creat", "unix.Truncate", "syscall.Open", "syscall.Truncate",
	"rawfile.Read", "rawfile.Write", "rawfile.Open", "rawfile.OpenFile",
}

// blocking are the rules that a file breaks; path is the file's in the repository.
func blocking(files *token.FileSet, file *ast.File, path string) (found []string) {
	dir := filepath.Dir(path)
	own, opener := dir == "limiter", path == "limiter/open.go"
	report := func(n ast.Node, format string, args ...any) {
		found = append(found, fmt.Sprintf("%s:%d: ", path, files.Position(n.Pos()).Line)+fmt.Sprintf(format, args...))
	}
	allowed := map[ast.Node]bool{}
	function := ""
	ast.Inspect(file, func(n ast.Node) bool {
		if f, is := n.(*ast.FuncDecl); is {
			function = f.Name.Name
		}
		if c, is := n.(*ast.BinaryExpr); is && (c.Op == token.EQL || c.Op == token.NEQ) {
			allowed[c.X], allowed[c.Y] = true, true
		}
		if s, is := n.(*ast.SelectorExpr); is && !own && s.Sel.Name == "Name" && name(s.X) == "vgpufs" {
			report(s, "vgpufs.Name: only package limiter makes paths of a claim's files")
		}
		if s, is := n.(*ast.SelectorExpr); is && !own && !allowed[s] && slices.Contains(claimFiles, s.Sel.Name) && name(s.X) == "limiter" {
			report(s, "%s is not called", s.Sel.Name) // a value of a function hides what it is given to
		}
		call, is := n.(*ast.CallExpr)
		if !is {
			return true
		}
		callee := name(call.Fun)
		allowed[call.Fun] = true
		pkg, _, _ := strings.Cut(callee, ".")
		if own || pkg == "limiter" || slices.Contains(harmless, callee) {
			for _, arg := range call.Args {
				allowed[arg] = true
			}
		}
		identity := slices.Contains(identities, path+" "+function)
		switch {
		case !own && strings.HasSuffix(callee, ".Join") && joins(call):
			report(call, "%s: only package limiter makes paths of a claim's files", callee)
		case identity && slices.Contains(opens, callee) && !mentions(call, "O_EXCL"):
			report(call, "%s in a function that opens nothing", callee)
		case !own && !identity && slices.Contains(claimFiles, strings.TrimPrefix(callee, "limiter.")) && pkg == "limiter" && !allowed[call]:
			report(call, "%s is given to something else than package limiter", callee)
		case own && !opener && slices.Contains(opens, callee):
			report(call, "%s: only open.go opens files", callee)
		case opener && slices.Contains(opens, callee) && !mentions(call, "LockPath") && function != "openWith" && function != "create":
			report(call, "%s: only openWith opens files of a claim", callee)
		case opener && strings.HasSuffix(callee, ".openWith") && function != "openPatiently" && !mentions(call, "O_NONBLOCK"):
			report(call, "%s without O_NONBLOCK", callee)
		case own && strings.HasSuffix(callee, ".openPatiently") && function != "wait":
			report(call, "%s: only Holder.wait may wait", callee)
		case strings.HasSuffix(callee, ".Flock") && !mentions(call, "LOCK_NB") && !mentions(call, "LOCK_UN"):
			report(call, "%s without LOCK_NB", callee)
		}
		return true
	})
	return found
}

// name is what an expression is called: a, a.b.
func name(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return name(e.X) + "." + e.Sel.Name
	}
	return ""
}

// joins reports whether a path is joined of the name of a claim's directory of files.
func joins(call *ast.CallExpr) bool {
	return slices.ContainsFunc(call.Args, func(e ast.Expr) bool {
		literal, is := e.(*ast.BasicLit)
		return is && slices.Contains(strings.FieldsFunc(literal.Value, func(r rune) bool { return strings.ContainsRune("`\"/", r) }), vgpufs.Name)
	})
}

// mentions reports whether a name is somewhere in a call.
func mentions(call *ast.CallExpr, word string) (found bool) {
	ast.Inspect(call, func(n ast.Node) bool {
		if id, is := n.(*ast.Ident); is {
			found = found || id.Name == word
		}
		return !found
	})
	return found
}

func TestNoBlockingOpenOfAContainersFiles(t *testing.T) {
	checked, gone := 0, slices.Clone(identities)
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		in := strings.TrimPrefix(path, "../")
		if d.IsDir() && slices.Contains([]string{"build", ".git", "testdata", "test", "internal/vgpufs", "test/nodetest"}, in) {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		assert.Empty(t, blocking(files, file, in))
		for _, d := range file.Decls {
			if f, is := d.(*ast.FuncDecl); is {
				checked++
				gone = slices.DeleteFunc(gone, func(of string) bool { return of == in+" "+f.Name.Name })
			}
		}
		return nil
	}))
	assert.Greater(t, checked, 2500, "functions")
	assert.Empty(t, gone, "identities that no function is")
}

// The check finds each of these.
func TestBlockingOpensAreFound(t *testing.T) {
	for name, test := range map[string]struct{ path, body, want string }{
		"read":                   {"oci/a.go", `os.ReadFile(limiter.LimitsPath(dir))`, "x:3: limiter.LimitsPath is given to something else"},
		"opened":                 {"oci/a.go", `unix.Open(limiter.UsagePath(dir), unix.O_RDONLY, 0)`, "x:3: limiter.UsagePath is given to something else"},
		"by a variable":          {"oci/a.go", `path := limiter.UsagePath(dir); os.Open(path)`, "x:3: limiter.UsagePath is given to something else"},
		"by a field":             {"oci/a.go", `c := claim{Usage: limiter.UsagePath(dir)}; os.Open(c.Usage)`, "x:3: limiter.UsagePath is given to something else"},
		"by a function's value":  {"oci/a.go", `path := limiter.UsagePath; os.Open(path(dir))`, "x:3: UsagePath is not called"},
		"joined":                 {"oci/a.go", `os.Open(filepath.Join(limiter.UsagePath(dir), ".."))`, "x:3: limiter.UsagePath is given to something else"},
		"the directory's":        {"oci/a.go", `os.Open(limiter.FilesDir(dir) + "/limits")`, "x:3: limiter.FilesDir is given to something else"},
		"by the directory":       {"oci/a.go", `os.ReadFile(filepath.Join(dir, vgpufs.Name, "limits"))`, "x:3: vgpufs.Name: only package limiter"},
		"by its name":            {"oci/a.go", `os.ReadFile(filepath.Join(dir, "vgpu", "usage"))`, "x:3: filepath.Join: only package limiter"},
		"by its name and more":   {"oci/a.go", `os.ReadFile(filepath.Join(dir, "vgpu/usage"))`, "x:3: filepath.Join: only package limiter"},
		"made":                   {"oci/populate.go", `}; func makePlaces() { rawfile.Open(limiter.FilesDir(dir)+"/x", unix.O_CREAT|unix.O_EXCL, 0)`, ""},
		"opened where it's made": {"oci/populate.go", `}; func makePlaces() { rawfile.Open(limiter.FilesDir(dir)+"/x", unix.O_CREAT, 0)`, "x:3: rawfile.Open in a function that opens nothing"},
		"returned":               {"oci/a.go", `return limiter.LimitsPath(dir)`, "x:3: limiter.LimitsPath is given to something else"},
		"in an exception":        {"monitor/audit/snapshot.go", `}; func usageFile() { p := limiter.UsagePath(dir); os.Open(p)`, "x:3: os.Open in a function that opens nothing"},
		"flock":                  {"oci/a.go", `unix.Flock(fd, unix.LOCK_EX)`, "x:3: unix.Flock without LOCK_NB"},
		"syscall's flock":        {"grant/a.go", `syscall.Flock(fd, syscall.LOCK_SH)`, "x:3: syscall.Flock without LOCK_NB"},
		"limiter":                {"limiter/limits.go", `os.Open(path)`, "x:3: os.Open: only open.go opens files"},
		"open.go":                {"limiter/open.go", `rawfile.Open(path, unix.O_RDWR, 0)`, "x:3: rawfile.Open: only openWith opens files of a claim"},
		"open.go, waiting":       {"limiter/open.go", `f.openWith(path, unix.O_RDWR)`, "x:3: f.openWith without O_NONBLOCK"},
		"waiting":                {"limiter/usage.go", `f.openPatiently(path)`, "x:3: f.openPatiently: only Holder.wait may wait"},
		"given to limiter":       {"oci/a.go", `limiter.ReadLimits(limiter.LimitsPath(dir))`, ""},
		"looked at":              {"oci/a.go", `os.Lstat(limiter.LimitsPath(dir))`, ""},
		"compared":               {"oci/a.go", `same = m.Source == limiter.LimitsPath(dir)`, ""},
		"flock that ends":        {"oci/a.go", `unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, test.path, "package p\nfunc f() {\n"+test.body+"\n}\n", 0)
			require.NoError(t, err)
			found := blocking(files, file, test.path)
			if test.want == "" {
				assert.Empty(t, found)
				return
			}
			require.NotEmpty(t, found)
			assert.Contains(t, found[0], strings.Replace(test.want, "x", test.path, 1))
		})
	}
}
