package jsonread

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// some is what encoding/json and a Reader both read.
type some struct {
	Text   string            `json:"text"`
	Number int64             `json:"number"`
	Small  uint32            `json:"small"`
	Yes    bool              `json:"yes"`
	Texts  []string          `json:"texts"`
	Labels map[string]string `json:"labels"`
	Deep   *some             `json:"deep"`
	Raw    json.RawMessage   `json:"raw"`
}

func readSome(r *Reader) (s some) {
	r.Object([]string{"text", "number", "small", "yes", "texts", "labels", "deep", "raw"}, func(name string) {
		switch name {
		case "text":
			s.Text = r.Text()
		case "number":
			s.Number = r.Int(64)
		case "small":
			s.Small = uint32(r.Uint(32))
		case "yes":
			s.Yes = r.Bool()
		case "texts":
			s.Texts = r.Texts()
		case "labels":
			if !r.Null() {
				s.Labels = map[string]string{}
				r.Members(func(name string) { s.Labels[name] = r.Text() })
			}
		case "deep":
			if !r.Null() {
				deep := readSome(r)
				s.Deep = &deep
			}
		case "raw":
			s.Raw = r.Raw()
		}
	})
	return s
}

// What a Reader reads is what encoding/json reads.
func FuzzReader(f *testing.F) {
	for _, text := range []string{
		`{"text":"a\u00e9\n\ud83d\ude00","number":-12,"small":7,"yes":true,"texts":["",null,"x"],"labels":{"a":"b"},"raw":[1.50, {}]}`,
		` {"deep":{"deep":{"text":"<&>"}},"other":[1e5,-0.1E-3,null,false,{"x":{}}]} `,
		`{"text":null,"texts":null,"labels":null,"deep":null,"raw":null,"yes":null,"number":null}`,
		`{"Text":"a"}`, `{"text":"a","text":"b"}`, `{"number":1.0}`, `{"number":01}`, `{"small":-1}`, `{"small":4294967296}`,
		`{"texts":[1]}`, `{"texts":["a",]}`, `{,}`, `{"a" 1}`, `{"text":"` + "\xff" + `"}`, `{"text":"` + "\n" + `"}`, `{"text":"\x"}`,
		`null`, `[]`, `{}`, ``, `{} x`, `{"te` + "ſ" + `t":1}`, `{"":1}`, `{"raw":tru}`, `{"raw":"\u12"}`, `{"labels":{"a":"1","a":"2"}}`, `nullx`, `{"a":nul`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := New(data)
		got := readSome(r)
		if !r.Ok() {
			return
		}
		var want some
		require.NoError(t, json.Unmarshal(data, &want))
		require.Equal(t, want, got)
	})
}

// What is common is not left to encoding/json.
func TestReads(t *testing.T) {
	for _, text := range []string{
		`{}`, ` null `, `{"text":"a\"b","number":9007199254740993,"x":[{"a":[]},1.5e9,"\\"],"yes":false}`,
		`{"labels":{"a":"1","A":"2"},"deep":{"deep":{}},"raw":{"a":[true,false,null]}}`,
	} {
		r := New([]byte(text))
		readSome(r)
		require.True(t, r.Ok(), text)
	}
}

// What isn't certain is.
func TestLeaves(t *testing.T) {
	for _, text := range []string{
		``, `{`, `{}}`, `[]`, `{"Text":"a"}`, `{"ſmall":1}`, `{"text":"a","text":"a"}`, `{"number":1.0}`, `{"yes":1}`,
		`{"labels":{"a":"1","a":"2"}}`, `{"text":"a"`, `{"text" "a"}`, `{"raw":[}`, `{"raw":01}`, `{"raw":-}`, `{"raw":1.}`, `{"raw":1e}`,
		`{"texts":["a" "b"]}`, `{"texts":["a",]}`, `{"text":"a",}`, `{"raw":{"a":1,}}`, `{"raw":{1:2}}`, `{"raw":{null:2}}`,
	} {
		r := New([]byte(text))
		readSome(r)
		require.False(t, r.Ok(), text)
	}
}
