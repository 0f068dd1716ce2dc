package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"sconce.dev/sconce/internal/condalock"
	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/registry"
)

// Answer is what came of asking a server.
type Answer struct {
	Address string `json:"address"`
	For     string `json:"for"` // what it is asked for
	Error   string `json:"error,omitempty"`
	Status  int    `json:"status,omitempty"` // of HTTP, where it is the Error
	Hint    string `json:"hint,omitempty"`
	Unasked bool   `json:"unasked,omitempty"` // the Error says why it could not be asked
	Err     error  `json:"-"`                 // that is the Error
}

// answerTime is how long a server may take to answer.
const answerTime = 5 * time.Second

// question is a request whose answer says whether a server is of use.
type question struct {
	Answer
	url    string // with what is secret
	header http.Header
	client *http.Client // nil: one that knows of no login
	judge  func(status int) (good bool, hint string)
}

// askNetwork asks the servers that the user works with, all at once: registries, package indexes, conda channels, and mirrors of
// distributions, which are those that were named and those of this machine's own packages, where bases from packages come from.
func askNetwork(ctx context.Context, logins []registry.Known, mirrors map[string]string) []Answer {
	questions := slices.Concat(registryQuestions(logins), indexQuestions(), condaQuestions(), mirrorQuestions(mirrors))
	answers := make([]Answer, len(questions))
	var wg sync.WaitGroup
	for i, q := range questions {
		wg.Go(func() { answers[i] = q.ask(ctx) })
	}
	wg.Wait()
	return answers
}

// thereAt asks whether a server is there. It is, whatever it says to somebody without a login; unless it is in trouble.
func thereAt(address, what string) question {
	return question{Answer: Answer{Address: fetch.Redact(address), For: what}, url: address, judge: func(status int) (bool, string) {
		return status < http.StatusInternalServerError || status == http.StatusNotImplemented, "" // of HEAD
	}}
}

// unasked is a question that cannot be asked.
func unasked(name, what string, err error) question {
	return question{Answer: Answer{Address: name, For: what, Error: err.Error(), Hint: fault.HintOf(err), Unasked: true}}
}

func registryQuestions(logins []registry.Known) (all []question) {
	for _, k := range logins {
		name, _, _ := strings.Cut(k.Name, "/")
		servers, err := registry.Servers(name)
		if err != nil {
			all = append(all, unasked(name, "images", err))
		}
		for _, server := range servers {
			all = append(all, thereAt("https://"+server+"/v2/", "images of "+name))
		}
	}
	return all
}

func indexQuestions() (all []question) {
	for _, index := range Indexes() {
		all = append(all, thereAt(index, "Python packages"))
	}
	return all
}

func mirrorQuestions(mirrors map[string]string) (all []question) {
	known := debian.OwnMirrors(debian.AptDir)
	maps.Copy(known, mirrors)
	for _, archive := range slices.Sorted(maps.Keys(known)) {
		all = append(all, thereAt(known[archive], "packages of "+archive))
	}
	return all
}

// someChannels are those of which no address is known.
const someChannels = "conda's channels"

// condaQuestions ask the channels that count here for a recipe that names none, and those that .condarc gives a place, where they are
// asked for packages: at their mirrors. Directories, and what only the solver can speak to, such as oci://, are not asked.
func condaQuestions() (all []question) {
	config, err := condalock.ReadConfig(os.LookupEnv)
	if err != nil {
		return []question{unasked(someChannels, "conda packages", err)}
	}
	way, err := config.Way()
	if err != nil {
		return []question{unasked(someChannels, "conda packages", err)}
	}
	client := fetch.New(nil, fetch.Options{}).Over(way) // which downloads nothing
	asked := map[string]bool{}
	names := slices.Concat(config.UsualChannels(), slices.Sorted(maps.Keys(config.Custom)))
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			continue
		}
		channels, err := config.Channels([]string{name}, ".")
		if err != nil {
			all = append(all, unasked(someChannels, "conda packages", err))
		}
		for _, c := range channels {
			for _, index := range config.Places(c.URL + channelIndex) {
				if strings.HasPrefix(index, "http") && !asked[index] {
					all = append(all, channelAt(config, client, c, index))
				}
				asked[index] = true
			}
		}
	}
	return all
}

// channelIndex is below the address of every channel (CEP 26).
const channelIndex = "/noarch/repodata.json"

// channelAt asks for the index of a channel, with the user's login. A channel that is not there, or not for this user, is of no use.
func channelAt(config *condalock.Config, client *http.Client, c condalock.Channel, index string) question {
	q := question{client: client, Answer: Answer{Address: strings.TrimSuffix(index, channelIndex), For: "conda packages of " + c.Name}}
	q.url, q.header = config.Logins.Authorize(index)
	q.judge = func(status int) (bool, string) {
		good := status < http.StatusBadRequest || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented
		return good, condalock.ChannelHint(statusText(status))
	}
	return q
}

// ask asks once.
func (q question) ask(ctx context.Context) Answer {
	an := q.Answer
	if q.url == "" {
		return an
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	status, err := q.head(ctx)
	switch {
	case errors.Is(err, http.ErrSchemeMismatch): // what speaks without encryption is asked again where it is used
	case errors.Is(err, context.DeadlineExceeded):
		an.Error, an.Hint = fmt.Sprintf("no answer within %s", answerTime), "a node without a way out? try a login node; a proxy is taken from HTTPS_PROXY"
	case err != nil:
		an.Error, an.Err = err.Error(), err
	default:
		if good, hint := q.judge(status); !good {
			an.Error, an.Status, an.Hint = statusText(status), status, hint
		}
	}
	return an
}

func statusText(status int) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", status, http.StatusText(status)))
}

// head returns the status with which the server answers, without following it elsewhere.
func (q question) head(ctx context.Context) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, q.url, nil)
	if err != nil {
		return 0, err
	}
	maps.Copy(req.Header, q.header)
	client := http.Client{Transport: fetch.DefaultTransport()}
	if q.client != nil {
		client = *q.client
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	var about *url.Error
	if errors.As(err, &about) {
		return 0, about.Err // the address is told anyway, and may have a login in it
	}
	if err != nil {
		return 0, err
	}
	resp.Body.Close()
	return resp.StatusCode, nil
}
