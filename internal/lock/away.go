package lock

import (
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/lazyregexp"
)

var (
	// What uv says of a server from which it got nothing, and of the answer of one in trouble.
	notRead    = lazyregexp.New(`Failed to fetch: (\S+)`)
	noServer   = lazyregexp.New(`tcp connect error|operation timed out|Temporary failure in name resolution|connection closed before message completed|[Cc]onnection reset|error reading a body from connection`)
	inTrouble  = lazyregexp.New(`HTTP status (?:server|client) error \((408|425|429|500|502|503|504|50[6-9]|5[1-9]\d) ([^)]*)\)`)
	errnoAtEnd = lazyregexp.New(` \(os error \d+\)$`)
)

// awayError says that uv got no answer of use from an index, of which another attempt may make more.
type awayError struct {
	text string // one line
	said string // all that uv said
}

// newAwayError makes of what uv said an error that is worth another attempt, nil when it is about something else. found is how many packages
// uv had been told of before: a server of which nothing is known may be a slip of the user's, and is not waited for as long.
func newAwayError(said string, found int) error {
	where := notRead.FindStringSubmatch(said)
	if where == nil {
		return nil
	}
	if m := inTrouble.FindStringSubmatch(said); m != nil {
		return &awayError{text: where[1] + ": the server answered " + m[1] + " " + m[2], said: said}
	}
	if !noServer.MatchString(said) {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(said), "\n")
	_, cause, _ := strings.Cut(lines[len(lines)-1], "cause: ")
	err := &awayError{text: where[1] + ": " + strings.ToLower(errnoAtEnd.ReplaceAllString(cause, "")), said: said}
	if found == 0 {
		return fetch.NeverAnswered(err)
	}
	return err
}

func (e *awayError) Error() string { return e.text }

// Transient tells package fetch that another attempt makes sense.
func (*awayError) Transient() bool { return true }

// withRemedy adds to err, after the last attempt, what else can be done about it.
func (e *awayError) withRemedy(err error) error {
	patience := fault.HintOf(err)
	switch remedy := remedyOf(e.said); {
	case remedy == "":
		return err
	case patience == "":
		return fault.Hint(err, remedy)
	default:
		return fault.Hint(err, remedy+"; "+patience)
	}
}
