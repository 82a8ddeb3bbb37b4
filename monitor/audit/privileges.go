package audit

import (
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// privileges uses the bounding set, because a setuid program gives it to processes that are not root. Capabilities in
// another user namespace do not count.
func (i *Inspector) privileges(p *Process) {
	dir := strconv.Itoa(p.PID)
	bounding, known := i.proc.bounding(dir)
	if !known || bounding&(1<<unix.CAP_SYS_ADMIN) == 0 || !i.proc.ofMachine(dir) {
		return
	}
	_, exempt, _ := i.container(p.Container.ID)
	p.Admin = !exempt
	all, known := i.proc.bounding("1")
	p.Privileged = known && bounding&all == all
}

func (p procfiles) bounding(dir string) (set uint64, known bool) {
	f, err := os.Open(p.Path(dir, "status"))
	if err != nil {
		return 0, false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 1<<20)) // up to 65,536 groups are listed
	if err != nil {
		return 0, false
	}
	_, after, found := strings.Cut(string(text), "\nCapBnd:")
	line, _, _ := strings.Cut(after, "\n")
	set, err = strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	return set, found && err == nil
}

// machineUsers is the inode of the initial user namespace (PROC_USER_INIT_INO).
const machineUsers = 0xEFFFFFFD

func (p procfiles) ofMachine(dir string) bool {
	var st unix.Stat_t
	err := unix.Stat(p.Path(dir, "ns/user"), &st)
	return err == nil && st.Ino == machineUsers
}
