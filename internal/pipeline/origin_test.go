package pipeline

import "testing"

// The address of a repository tells nothing but where it is for everybody.
func TestWithoutLogin(t *testing.T) {
	for address, want := range map[string]string{
		"https://example.org/team/images.git":                "https://example.org/team/images.git",
		"HTTPS://me:secret@example.org:8443/team/images":     "https://example.org:8443/team/images",
		"https://me:pass@word@example.org/team/images?t=1#x": "https://example.org/team/images",
		"https://me:p/a?s#s@w@example.org/team/images?t=1#x": "",
		"https://example.org/team/images#token":              "https://example.org/team/images",
		"ssh://git@example.org:22/team/images":               "ssh://example.org:22/team/images",
		"git@example.org:team/images.git":                    "example.org:team/images.git",
		"git://example.org/team":                             "git://example.org/team",
		"https://example.org/":                               "",
		"file:///home/alice/images":                          "",
		"FILE:///home/alice/images":                          "",
		"file://host/home/alice/images":                      "",
		"ext::sh -c 'cat /home/alice/x'":                     "",
		"gcrypt::/home/alice/images":                         "",
		"gcrypt::ssh://host/images":                          "",
		"/home/alice/images":                                 "",
		"../images":                                          "",
		"./a:b":                                              "",
		"C:/images":                                          "",
		"":                                                   "",
	} {
		if got := withoutLogin(address); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
}
