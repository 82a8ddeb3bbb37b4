package native

import (
	"path/filepath"
	"strings"
	"testing"
)

// Whatever the input is, no limit is set for a path that is not absolute or for no GPU.
func FuzzAnswer(f *testing.F) {
	f.Add(`{"cgroup":"/cg","limits":[{"uuid":"GPU-a","bytes":5}]}`)
	f.Add(`{"cgroup":"cg","limits":[]}`)
	f.Fuzz(func(t *testing.T, text string) {
		d := &fake{}
		reply := Answer(t.Context(), d, strings.NewReader(text))
		if (reply.Error == "") != (len(reply.States) > 0) {
			t.Errorf("neither states nor an error: %+v", reply)
		}
		for key := range d.limits {
			if !strings.Contains(key, "/") {
				t.Errorf("a limit for %q", key)
			}
		}
	})
}

// A container's state, its config, its group and its mounts give a limit to the container's own group, or an error.
func FuzzHook(f *testing.F) {
	f.Add(`{"id":"c0ffee","pid":77}`, `{"root":{"path":"r"},"process":{}}`, "0::/pods/c0ffee\n", "1 1 0:1 / / rw - ext4 x rw\n")
	f.Add(`{"id":"../x","pid":1}`, `{}`, "0::/../..\n", "2 1 0:2 / /c rw - cgroup2 x rw\n")
	s := newScene(f)
	f.Fuzz(func(t *testing.T, state, config, cgroup, mounts string) {
		s.driver = &fake{}
		s.write(t, s.bundle, "config.json", config)
		s.write(t, s.hook.proc, "77/cgroup", cgroup)
		s.write(t, s.hook.proc, "77/mountinfo", mounts)
		state = strings.Replace(state, "}", `,"bundle":"`+s.bundle+`"}`, 1)
		if err := s.hook.limit(t.Context(), strings.NewReader(state)); err == nil && len(s.driver.limits) == 0 {
			t.Error("accepted without a limit")
		}
		for key := range s.driver.limits {
			if group := strings.TrimPrefix(key, gpu); !strings.HasPrefix(group, s.hook.root+"/") || filepath.Clean(group) != group {
				t.Errorf("a limit for %q", group)
			}
		}
	})
}
