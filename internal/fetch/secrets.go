package fetch

import (
	"net/url"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/lazyregexp"
)

// userinfo is the part of an address that holds a login (RFC 3986 section 3.2.1). It ends at the last @ before the path:
// clients take a password with an @ that nobody has escaped.
var userinfo = lazyregexp.New(`([A-Za-z][A-Za-z0-9+.-]*://)[^/?#\s"'` + "`" + `]*@`)

// WithoutLogins takes user and password out of every address in a text.
func WithoutLogins(text string) string { return userinfo.ReplaceAllString(text, "$1") }

// minSecret is from how many characters on a secret is recognised in a text: a shorter one is part of words.
const minSecret = 5

// HideSecrets takes out of a text that another program wrote the logins in addresses, and secrets, as they are and as addresses have them.
func HideSecrets(text string, secrets []string) string {
	text = userinfo.ReplaceAllString(text, "${1}****@")
	var forms []string
	for _, s := range secrets {
		forms = append(forms, s, url.QueryEscape(s), url.PathEscape(s))
	}
	slices.SortFunc(forms, func(a, b string) int { return len(b) - len(a) })
	for _, s := range forms {
		if len(s) >= minSecret {
			text = strings.ReplaceAll(text, s, "****")
		}
	}
	return text
}
