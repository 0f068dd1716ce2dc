package hostconfig

import (
	"encoding/base64"
	"net/url"
	"path"

	"sconce.dev/sconce/internal/lazyregexp"
)

// secretForms are how files and variables hold secrets; the last group of each is the secret: the password of an address, or its
// user when that is all there is, a token in a path as conda has it, and keys of npm and others.
var secretForms = []*lazyregexp.Regexp{
	lazyregexp.New(`://[^/\s:@"']*:([^/\s@"']+)@`),
	lazyregexp.New(`://([^/\s:@"']{8,})@`),
	lazyregexp.New(`/t/([^/\s"']+)/`),
	lazyregexp.New(`(?i)(?:_auth|_?auth_?token|_?password|passwd|token|secret)["']?[ \t]*[=:][ \t]*["']?([^\s"']+)`),
}

// findSecrets fills in c.Secrets. They are also looked for as programs write them: decoded.
func (c *Config) findSecrets() {
	var texts [][]byte
	for _, f := range c.Files {
		if path.Base(f.Target) != "ca.crt" {
			texts = append(texts, f.Content)
		}
	}
	for _, kv := range c.Env {
		texts = append(texts, []byte(kv))
	}
	for _, text := range texts {
		for _, form := range secretForms {
			for _, m := range form.Regexp().FindAllSubmatch(text, -1) {
				c.addSecret(m[1])
			}
		}
	}
}

func (c *Config) addSecret(secret []byte) {
	c.Secrets = append(c.Secrets, secret)
	if plain, err := url.PathUnescape(string(secret)); err == nil && plain != string(secret) {
		c.Secrets = append(c.Secrets, []byte(plain))
	}
	// npm keeps _auth and _password so.
	if plain, err := base64.StdEncoding.DecodeString(string(secret)); err == nil && len(plain) >= 8 {
		c.Secrets = append(c.Secrets, plain)
	}
}
