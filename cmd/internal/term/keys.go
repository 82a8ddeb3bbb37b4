package term

import "unicode/utf8"

// Key is a key that was pressed: a printable character, or one of the names below.
type Key string

// The keys that are no characters. Others that are none are not told.
const (
	KeyUp        Key = "up"
	KeyDown      Key = "down"
	KeyLeft      Key = "left"
	KeyRight     Key = "right"
	KeyPageUp    Key = "page up"
	KeyPageDown  Key = "page down"
	KeyHome      Key = "home"
	KeyEnd       Key = "end"
	KeyEnter     Key = "enter"
	KeyEscape    Key = "escape"
	KeyBackspace Key = "backspace"
	KeyInterrupt Key = "interrupt" // Ctrl-C
	KeySuspend   Key = "suspend"   // Ctrl-Z
	KeyRedraw    Key = "redraw"    // Ctrl-L
	KeyErase     Key = "erase"     // Ctrl-U, the whole line
)

// controls are the bytes below the space that mean something.
var controls = map[byte]Key{
	'\r': KeyEnter, '\n': KeyEnter, 0x7f: KeyBackspace, 0x08: KeyBackspace,
	0x03: KeyInterrupt, 0x1a: KeySuspend, 0x0c: KeyRedraw, 0x15: KeyErase,
}

// sequences are what follows ESC [ or ESC O, as xterm and the Linux console send it.
var sequences = map[string]Key{
	"A": KeyUp, "B": KeyDown, "C": KeyRight, "D": KeyLeft, "H": KeyHome, "F": KeyEnd,
	"1~": KeyHome, "4~": KeyEnd, "5~": KeyPageUp, "6~": KeyPageDown, "7~": KeyHome, "8~": KeyEnd,
}

// nextKey takes the first key off what a terminal has sent. A key of "" is one that
// isn't told. whole is false if more bytes may belong to it: then nothing is taken.
func nextKey(sent []byte) (key Key, size int, whole bool) {
	switch first := sent[0]; {
	case first == 0x1b:
		return escapeSequence(sent)
	case first < ' ' || first == 0x7f:
		return controls[first], 1, true
	}
	if !utf8.FullRune(sent) {
		return "", 0, false
	}
	r, size := utf8.DecodeRune(sent)
	if r == utf8.RuneError {
		return "", size, true
	}
	return Key(sent[:size]), size, true
}

func escapeSequence(sent []byte) (key Key, size int, whole bool) {
	if len(sent) == 1 {
		return "", 0, false
	}
	if sent[1] != '[' && sent[1] != 'O' {
		return KeyEscape, 1, true // and another key after it
	}
	for i, b := range sent[2:] {
		if b >= 0x40 && b <= 0x7e { // ECMA-48: the final byte
			return sequences[string(sent[2:i+3])], i + 3, true
		}
		if b < 0x20 || b > 0x3f || i > 16 {
			return "", i + 2, true // no sequence at all
		}
	}
	return "", 0, false
}
