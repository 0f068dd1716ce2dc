package condatest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Server gives a channel out over HTTP, with ETag, ranges, logins and faults.
type Server struct {
	URL string // of the channel

	root string
	mu   sync.Mutex

	user, password, bearer, token string
	missing                       []string
	faults                        map[string]*fault
	requests                      []string
}

// fault is what goes wrong with the next requests of a file.
type fault struct {
	times  int
	status int // 0: the connection is cut in the middle of the body
}

// Serve starts a server of the channel. It stops with the test.
func (c *Channel) Serve(t testing.TB) *Server {
	t.Helper()
	s := &Server{root: c.Dir, faults: map[string]*fault{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.URL = server.URL + "/channel"
	return s
}

// Basic asks for a user and a password from now on.
func (s *Server) Basic(user, password string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.user, s.password = user, password
}

// Bearer asks for a token in the header Authorization from now on.
func (s *Server) Bearer(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bearer = token
}

// Token asks for addresses with /t/TOKEN/ from now on.
func (s *Server) Token(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

// WithLogin returns the channel's address with a login in it.
func (s *Server) WithLogin(user, password string) string {
	return strings.Replace(s.URL, "://", "://"+user+":"+password+"@", 1)
}

// WithToken returns the channel's address with a token in it.
func (s *Server) WithToken(token string) string {
	return strings.TrimSuffix(s.URL, "/channel") + "/t/" + token + "/channel"
}

// Without leaves files out by the last element of their path: "repodata_shards.msgpack.zst", "repodata.json.zst".
func (s *Server) Without(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missing = names
}

// Fail answers the next requests of a file, by its last element, with a status.
func (s *Server) Fail(name string, times, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[name] = &fault{times, status}
}

// Cut breaks the next answers with a file, by its last element, off in the middle.
func (s *Server) Cut(name string, times int) { s.Fail(name, times, 0) }

// Requests returns what was asked for since the last call, sorted: "GET linux-64/repodata.json".
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.requests
	s.requests = nil
	slices.Sort(got)
	return got
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, allowed := s.authorize(r)
	if !allowed {
		w.Header().Set("WWW-Authenticate", `Basic realm="channel"`)
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	f := s.note(r.Method, name)
	if f != nil && f.status != 0 {
		w.Header().Set("Retry-After", "0")
		http.Error(w, "a fault", f.status)
		return
	}
	data, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(name)))
	if err != nil || s.lacks(name) {
		http.NotFound(w, r)
		return
	}
	if f != nil {
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data[:len(data)/2])
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(data)))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// authorize returns the path in the channel that a request is for, and whether it may have it.
func (s *Server) authorize(r *http.Request) (name string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, token := r.URL.Path, ""
	if rest, found := strings.CutPrefix(name, "/t/"); found {
		token, name, _ = strings.Cut(rest, "/")
		name = "/" + name
	}
	name, ok = strings.CutPrefix(name, "/channel/")
	if !ok || !fs.ValidPath(name) {
		name = "none"
	}
	user, password, _ := r.BasicAuth()
	switch {
	case s.token != "" && token != s.token,
		s.bearer != "" && r.Header.Get("Authorization") != "Bearer "+s.bearer,
		s.user != "" && (user != s.user || password != s.password):
		return name, false
	}
	return name, true
}

// note writes a request down and returns the fault that it meets, if any.
func (s *Server) note(method, name string) *fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, method+" "+name)
	f := s.faults[path.Base(name)]
	if f == nil || f.times == 0 {
		return nil
	}
	f.times--
	return &fault{f.times, f.status}
}

func (s *Server) lacks(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.missing, path.Base(name))
}
