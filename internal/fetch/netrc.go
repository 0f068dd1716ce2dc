package fetch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/ctxio"
)

// Netrc is a list of logins in the order of the file, as curl, pip and enroot keep them.
type Netrc []Login

// Login is one entry. Machine is empty for the entry that serves every machine not named before it.
type Login struct {
	Machine  string
	User     string
	Password string
}

// maxNetrc bounds the file's size, in bytes.
const maxNetrc = 1 << 20

// ReadNetrc reads the user's file: $NETRC, else ~/.netrc, else ~/_netrc. No file is an empty list.
func ReadNetrc() (Netrc, error) {
	for _, path := range netrcPaths() {
		n, err := ReadNetrcFile(path)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return n, err
		}
	}
	return nil, nil
}

func netrcPaths() []string {
	if p := os.Getenv("NETRC"); p != "" {
		return []string{p}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil // without a home there is no file in it
	}
	return []string{filepath.Join(home, ".netrc"), filepath.Join(home, "_netrc")}
}

// ReadNetrcFile reads the file at path. A file that this user may not read is an empty list: it was not meant for us.
func ReadNetrcFile(path string) (Netrc, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	n, err := ParseNetrc(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return n, nil
}

// Find returns the login for a host, and for one user of it when user is not empty.
func (n Netrc) Find(host, user string) (Login, bool) {
	for _, l := range n {
		if (l.Machine == "" || strings.EqualFold(l.Machine, host)) && (user == "" || l.User == user) {
			return l, true
		}
	}
	return Login{}, false
}

// ParseNetrc reads netrc's words: machine NAME or default, then login, password and account with one value each;
// macdef up to the next empty line; # to the end of the line. Values may stand in double quotes with backslashes.
func ParseNetrc(r io.Reader) (Netrc, error) {
	data, err := ctxio.ReadAtMost(r, maxNetrc)
	if err != nil {
		return nil, err
	}
	p := netrcParser{text: string(data), line: 1}
	return p.parse()
}

type netrcParser struct {
	text string
	pos  int
	line int
	out  Netrc
}

func (p *netrcParser) parse() (Netrc, error) {
	for {
		word, ok := p.word()
		if !ok {
			return p.out, nil
		}
		if err := p.statement(word); err != nil {
			return nil, err
		}
	}
}

func (p *netrcParser) statement(word string) error {
	switch {
	case word == "default":
		p.out = append(p.out, Login{})
		return nil
	case word == "macdef":
		p.skipMacro()
		return nil
	case strings.HasPrefix(word, "#"):
		p.skipLine()
		return nil
	case word != "machine" && word != "login" && word != "user" && word != "password" && word != "account":
		return fmt.Errorf("line %d: expected machine, default, login, password, account or macdef", p.line)
	}
	value, ok := p.word()
	if !ok {
		return fmt.Errorf("line %d: %s has no value", p.line, word)
	}
	return p.set(word, value)
}

func (p *netrcParser) set(word, value string) error {
	if word == "machine" {
		if value == "" {
			return fmt.Errorf("line %d: machine has an empty name", p.line)
		}
		p.out = append(p.out, Login{Machine: value})
		return nil
	}
	if len(p.out) == 0 {
		return fmt.Errorf("line %d: %s before any machine", p.line, word)
	}
	last := &p.out[len(p.out)-1]
	switch word {
	case "login", "user":
		last.User = value
	case "password":
		last.Password = value
	}
	return nil
}

// word returns the next word, unquoted; false at the end.
func (p *netrcParser) word() (string, bool) {
	for p.pos < len(p.text) && isSpace(p.text[p.pos]) {
		p.next()
	}
	if p.pos == len(p.text) {
		return "", false
	}
	if p.text[p.pos] == '"' {
		return p.quoted(), true
	}
	start := p.pos
	for p.pos < len(p.text) && !isSpace(p.text[p.pos]) {
		p.next()
	}
	return p.text[start:p.pos], true
}

func (p *netrcParser) quoted() string {
	p.next()
	var b strings.Builder
	for p.pos < len(p.text) {
		c := p.next()
		if c == '"' {
			break
		}
		if c == '\\' && p.pos < len(p.text) {
			c = p.next()
		}
		b.WriteByte(c)
	}
	return b.String()
}

func (p *netrcParser) next() byte {
	c := p.text[p.pos]
	p.pos++
	if c == '\n' {
		p.line++
	}
	return c
}

func (p *netrcParser) skipLine() {
	for p.pos < len(p.text) && p.text[p.pos] != '\n' {
		p.next()
	}
}

func (p *netrcParser) skipMacro() {
	end := strings.Index(p.text[p.pos:], "\n\n")
	if end < 0 {
		p.pos = len(p.text)
		return
	}
	p.line += strings.Count(p.text[p.pos:p.pos+end+2], "\n")
	p.pos += end + 2
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// Text writes the list as a file has it.
func (n Netrc) Text() []byte {
	var b strings.Builder
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	for _, l := range n {
		if l.Machine == "" {
			b.WriteString("default")
		} else {
			b.WriteString("machine " + l.Machine)
		}
		fmt.Fprintf(&b, " login \"%s\" password \"%s\"\n", quote.Replace(l.User), quote.Replace(l.Password))
	}
	return []byte(b.String())
}
