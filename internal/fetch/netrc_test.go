package fetch

import (
	"slices"
	"strings"
	"testing"
)

func TestParseNetrc(t *testing.T) {
	tests := []struct {
		name, text string
		want       Netrc
		err        string
	}{
		{"empty", "", nil, ""},
		{"one line", "machine a.org login joe password x", Netrc{{"a.org", "joe", "x"}}, ""},
		{"lines", "machine a.org\n  login joe\n\tpassword x\n", Netrc{{"a.org", "joe", "x"}}, ""},
		{"two and default", "machine a login 1 password 2 machine b login 3 account z password 4 default login 5 password 6", Netrc{{"a", "1", "2"}, {"b", "3", "4"}, {"", "5", "6"}}, ""},
		{"comment", "# machine no\nmachine a # me\nlogin 1 password a#b", Netrc{{"a", "1", "a#b"}}, ""},
		{"quotes", `machine a login "jo e" password "a\"b\\c"`, Netrc{{"a", "jo e", `a"b\c`}}, ""},
		{"macro", "machine a login 1 password 2\nmacdef init\ncd /x\nmachine no\n\nmachine b login 3 password 4", Netrc{{"a", "1", "2"}, {"b", "3", "4"}}, ""},
		{"keyword as value", "machine machine login login password password", Netrc{{"machine", "login", "password"}}, ""},
		{"no value", "machine a login", nil, "line 1: login has no value"},
		{"before machine", "\nlogin joe", nil, "line 2: login before any machine"},
		{"unknown word", "machine a\nlogn joe", nil, "line 2: expected machine"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseNetrc(strings.NewReader(tc.text))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("got %v, %v, want %v", got, err, tc.want)
			}
		})
	}
}

func TestNetrcErrorsShowNoSecret(t *testing.T) {
	_, err := ParseNetrc(strings.NewReader("machine a login joe pasword hunter2"))
	if err == nil || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "joe") {
		t.Errorf("error %v", err)
	}
}

func TestNetrcFind(t *testing.T) {
	n := Netrc{{"a.org", "joe", "1"}, {"a.org", "ann", "2"}, {"", "any", "3"}}
	for _, tc := range []struct{ host, user, password string }{{"a.org", "", "1"}, {"A.org", "ann", "2"}, {"b.org", "", "3"}, {"b.org", "joe", ""}} {
		if l, _ := n.Find(tc.host, tc.user); l.Password != tc.password {
			t.Errorf("%s@%s: password %q, want %q", tc.user, tc.host, l.Password, tc.password)
		}
	}
}

// FuzzNetrc checks that what is read can be written and read again.
func FuzzNetrc(f *testing.F) {
	f.Add("machine a.org login joe password x\ndefault login y password \"a b\\\"\"")
	f.Add("macdef x\n\nmachine b # c\nlogin d")
	f.Fuzz(func(t *testing.T, text string) {
		n, err := ParseNetrc(strings.NewReader(text))
		if err != nil {
			return
		}
		quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
		var b strings.Builder
		for _, l := range n {
			if l.Machine == "" {
				b.WriteString("default")
			} else {
				b.WriteString(`machine "` + quote.Replace(l.Machine) + `"`)
			}
			b.WriteString(` login "` + quote.Replace(l.User) + `" password "` + quote.Replace(l.Password) + "\"\n")
		}
		again, err := ParseNetrc(strings.NewReader(b.String()))
		if err != nil || !slices.Equal(n, again) {
			t.Errorf("%q became %q (%v)", n, again, err)
		}
	})
}
