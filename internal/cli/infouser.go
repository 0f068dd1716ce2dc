package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/host"
	"sconce.dev/sconce/internal/registry"
	"sconce.dev/sconce/internal/ui"
	"sconce.dev/sconce/internal/units"
)

// findUV adds the uv that the store has where PATH has none. A store that is not there yet stays so.
func (a *app) findUV(ctx context.Context, dir string, tools []host.Tool) {
	if _, err := os.Stat(dir); err != nil {
		return
	}
	for i := range tools {
		t := &tools[i]
		if t.Name != "uv" || t.Path != "" {
			continue
		}
		s, err := a.open(ctx)
		if err != nil {
			return // what is wrong with the store is told by the commands that need it
		}
		if path, version, ok := s.StoredUV(); ok {
			t.Path, t.Version = path, "uv "+version+", brought by sconce"
		}
	}
}

// Below these an image with PyTorch hardly fits: its packages as they come, its layers, and what is unpacked of them.
const (
	littleRoom  = 20_000_000_000 // bytes
	littleFiles = 100_000        // inodes
)

// storeRoom says what is left for the store, and what to do where that is little.
func (in hostInfo) storeRoom() []string {
	at := in.Store
	said := []string{fmt.Sprintf("%s, %s of %s free", at.Type, units.Size(at.Free), units.Size(at.Size))}
	room, files, limited := at.Free, at.FreeFiles, at.Files > 0
	if limited {
		said[0] += fmt.Sprintf(", %d of %d inodes", at.FreeFiles, at.Files)
	}
	if q := in.Quota; q != nil && q.MaxBytes > 0 {
		room = min(room, max(0, q.MaxBytes-q.Bytes))
		said = append(said, fmt.Sprintf("your quota there: %s of %s used", units.Size(q.Bytes), units.Size(q.MaxBytes)))
	}
	if q := in.Quota; q != nil && q.MaxFiles > 0 {
		files, limited = max(0, q.MaxFiles-q.Files), true
		said = append(said, fmt.Sprintf("your quota there: %d of %d files used", q.Files, q.MaxFiles))
	}
	if at.Size > 0 && room < littleRoom || limited && files < littleFiles {
		said = append(said, "that is little for images with PyTorch: `sconce cache prune` makes room, SCONCE_STORE names a directory on a larger disk")
	}
	if at.Advice != "" {
		said = append(said, at.Advice)
	}
	return said
}

// sayLogins tells where the user is logged in.
func (in hostInfo) sayLogins(line func(title, format string, args ...any)) {
	if len(in.Logins) == 0 {
		line("Logins:", "none; `sconce login REGISTRY` logs in where an image is not for everybody")
		return
	}
	title := "Logins:"
	for _, k := range in.Logins {
		line(title, "%s, by %s", k.Name, k.From)
		title = ""
	}
}

// answer is what came of asking a server.
type answer struct {
	Address string `json:"address"`
	For     string `json:"for"` // what it is asked for
	Error   string `json:"error,omitempty"`
	Hint    string `json:"hint,omitempty"`
}

// answerTime is how long a server may take to answer.
const answerTime = 5 * time.Second

// askNetwork asks the servers that the user works with, all at once. --offline asks none.
func (a *app) askNetwork(ctx context.Context, logins []registry.Known) []answer {
	if a.flags.offline {
		return nil
	}
	var all []answer
	add := func(address, what string) { all = append(all, answer{Address: address, For: what}) }
	for _, k := range logins {
		host, _, _ := strings.Cut(k.Name, "/")
		servers, err := registry.Servers(host)
		if err != nil {
			all = append(all, answer{Address: host, For: "images", Error: err.Error()})
		}
		for _, server := range servers {
			add("https://"+server+"/v2/", "images of "+host)
		}
	}
	for _, index := range engine.Indexes() {
		add(index, "Python packages")
	}
	var wg sync.WaitGroup
	for i := range all {
		if all[i].Error == "" {
			wg.Go(func() { all[i].ask(ctx) })
		}
	}
	wg.Wait()
	return all
}

// ask asks once. Whatever the server says to somebody without a login, it is there; unless it is in trouble.
func (an *answer) ask(ctx context.Context) {
	address := an.Address
	an.Address = fetch.Redact(address)
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	err := head(ctx, address)
	switch {
	case err == nil || errors.Is(err, http.ErrSchemeMismatch): // that without encryption is asked again where it is used
	case errors.Is(err, context.DeadlineExceeded):
		an.Error, an.Hint = fmt.Sprintf("no answer within %s", answerTime), "a node without a way out? try a login node; a proxy is taken from HTTPS_PROXY"
	default:
		an.Error, an.Hint = err.Error(), ui.NetworkHint(err)
	}
}

func head(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, address, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: fetch.DefaultTransport(), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	var about *url.Error
	if errors.As(err, &about) {
		return about.Err // the address is told anyway, and may have a login in it
	}
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode >= http.StatusInternalServerError && resp.StatusCode != http.StatusNotImplemented { // of HEAD
		return errors.New(resp.Status)
	}
	return nil
}

// sayNetwork tells who answers.
func (in hostInfo) sayNetwork(line func(title, format string, args ...any)) {
	title := "Network:"
	for _, an := range in.Network {
		if an.Error == "" {
			line(title, "%s answers (%s)", an.Address, an.For)
		} else {
			line(title, "%s does not answer (%s): %s", an.Address, an.For, an.Error)
			if an.Hint != "" {
				line("", "%s", an.Hint)
			}
		}
		title = ""
	}
}
