package registry

import "strings"

// challenge is one way of proving who one is that a server offers.
type challenge struct {
	scheme string // lower case
	params map[string]string
}

// maxParams bounds the parameters of one challenge.
const maxParams = 32

// parseChallenges reads WWW-Authenticate (RFC 9110 section 11.6.1): one header may hold several challenges, and commas
// separate both challenges and parameters. What cannot be read ends the list.
func parseChallenges(headers []string) []challenge {
	var out []challenge
	for _, h := range headers {
		out = append(out, parseHeader(h)...)
	}
	return out
}

func parseHeader(s string) []challenge {
	var out []challenge
	for {
		s = strings.TrimLeft(s, " \t,")
		word := leadingToken(s)
		if word == "" {
			return out
		}
		rest := strings.TrimLeft(s[len(word):], " \t")
		if !strings.HasPrefix(rest, "=") { // a scheme
			out = append(out, challenge{strings.ToLower(word), map[string]string{}})
			s = rest
			continue
		}
		value, after, ok := paramValue(strings.TrimLeft(rest[1:], " \t"))
		if !ok || len(out) == 0 {
			return out
		}
		if last := out[len(out)-1]; len(last.params) < maxParams {
			last.params[strings.ToLower(word)] = value
		}
		s = after
	}
}

func leadingToken(s string) string {
	end := strings.IndexFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`()<>@,;:\"/[]?={}`, r)
	})
	if end < 0 {
		return s
	}
	return s[:end]
}

// paramValue reads a token or a quoted string.
func paramValue(s string) (value, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		end := strings.IndexAny(s, ", \t")
		if end < 0 {
			end = len(s)
		}
		return s[:end], s[end:], true
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '"':
			return b.String(), s[i+1:], true
		case s[i] == '\\' && i+1 < len(s):
			i++
		}
		b.WriteByte(s[i])
	}
	return "", "", false
}
