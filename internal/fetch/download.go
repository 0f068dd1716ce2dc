package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/progress"
	"sconce.dev/sconce/internal/store"
)

// progressWorth is how many new bytes make an attempt count as progress, so that a server that cuts long downloads
// again and again is followed to the end, and one that sends a few bytes and hangs is not.
const progressWorth = 256 << 10

// copyBuffer is the unit in which bytes go from the network to disk and hash.
const copyBuffer = 128 << 10

// download is one blob on its way: attempts that each go on where the last one ended.
type download struct {
	client  *Client
	request Request
	part    *store.Partial
	task    *progress.Task
	wrong   int // how often everything was here and had the wrong hash or size
}

func (d *download) run(ctx context.Context) error {
	retry := d.client.newRetry()
	for {
		before := d.part.Size()
		err := cutOff(d.attempt(ctx))
		if err == nil {
			return nil
		}
		if d.part.Size()-before >= progressWorth {
			retry.reset()
		}
		if !d.again(err) {
			return err
		}
		d.task.Log(fmt.Sprintf("trying again: %v", plain(err)))
		if waitErr := retry.wait(ctx, err); waitErr != nil {
			return waitErr
		}
	}
}

// cutOff says in words what the end of a stream means here.
func cutOff(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the connection was cut off: %w", plain(err))
	}
	return err
}

// again reports whether another attempt makes sense after err. Bytes that are wrong as a whole are worth one.
func (d *download) again(err error) bool {
	var mismatch *store.MismatchError
	var size *SizeError
	if errors.As(err, &mismatch) || errors.As(err, &size) {
		d.wrong++
		return d.wrong == 1
	}
	return transient(err)
}

// attempt asks for what is missing and commits the blob when all is here.
func (d *download) attempt(ctx context.Context) error {
	if err := d.trim(); err != nil {
		return err
	}
	d.task.SetCurrent(d.part.Size())
	if d.request.Size > 0 && d.part.Size() == d.request.Size {
		return d.part.Commit()
	}
	outer := ctx
	ctx, watch := newWatchdog(ctx, d.client.opts.IdleTimeout)
	defer watch.stop()
	resp, err := d.ask(ctx, d.part.Size())
	if err != nil {
		if silent := watch.cause(err); silent != err { //nolint:errorlint // it is the very same unless the watchdog barked
			err = d.client.unknown(hostOf(d.request.URL), silent)
		}
		return err
	}
	defer resp.Body.Close()
	size, done, err := d.begin(resp)
	if done || err != nil {
		return err
	}
	if err := d.receive(outer, newStream(resp, d.part.Size(), watch), size); err != nil {
		return err
	}
	if d.request.Size > 0 && d.part.Size() < d.request.Size {
		return io.ErrUnexpectedEOF
	}
	return d.part.Commit()
}

// trim throws away what cannot be the beginning of the blob.
func (d *download) trim() error {
	if d.request.Size > 0 && d.part.Size() > d.request.Size {
		return d.part.Reset()
	}
	return nil
}

// ask sends the request for everything from the position at on. No If-Range goes along: which bytes are right is
// decided by their hash, which no server can get wrong in agreement with us, and mirrors disagree about ETags.
func (d *download) ask(ctx context.Context, at int64) (*http.Response, error) {
	req, err := newRequest(ctx, http.MethodGet, d.request.URL)
	if err != nil {
		return nil, err
	}
	for k, v := range d.request.Header {
		req.Header[k] = v
	}
	req.Header.Set("Accept-Encoding", "identity")
	if at > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", at))
	}
	hc := d.client.clientFor(d.request)
	if hc == nil {
		hc = d.client.http
	}
	resp, err := hc.Do(req)
	if err != nil {
		return nil, d.client.unknown(req.URL.Host, err)
	}
	d.client.answered.Store(req.URL.Host, true)
	return resp, nil
}

// begin reads the answer's status and makes the partial agree with where the body starts. size is the file's, in bytes, 0 when nobody
// knows it; done means that the blob was complete already.
func (d *download) begin(resp *http.Response) (size int64, done bool, err error) {
	switch resp.StatusCode {
	case http.StatusOK:
		if d.part.Size() > 0 { // the server cannot resume
			err = d.part.Reset()
			d.task.SetCurrent(0)
		}
		size, sizeErr := d.checkSize(resp.ContentLength)
		return size, false, errors.Join(err, sizeErr)
	case http.StatusPartialContent:
		start, total, ok := parseContentRange(resp.Header.Get("Content-Range"))
		if !ok || start != d.part.Size() {
			return 0, false, errors.Join(errBadRange, d.part.Reset())
		}
		size, err := d.checkSize(total)
		return size, false, err
	case http.StatusRequestedRangeNotSatisfiable:
		if d.part.Size() > 0 { // a process died between the last byte and the commit; or these bytes are not the blob's
			return 0, true, d.part.Commit()
		}
	}
	return 0, false, NewStatusError(resp)
}

// checkSize compares the size that the server announces, negative when it does not, with the one that is known, and returns which it is.
func (d *download) checkSize(total int64) (int64, error) {
	if total < 0 {
		return d.request.Size, nil
	}
	if want := d.request.Size; want > 0 && total != want {
		return 0, errors.Join(&SizeError{want: want, got: total}, d.part.Reset())
	}
	d.task.SetTotal(total)
	return total, nil
}

// receive reads a file of size bytes to its end, on a second connection if the first one crawls.
func (d *download) receive(ctx context.Context, first *stream, size int64) error {
	spare := d.watchSpeed(ctx, first, size)
	defer spare.close()
	buf := make([]byte, copyBuffer)
	for {
		s := spare.current()
		p, readErr := s.read(buf, d.part.Size())
		if want := d.request.Size; want > 0 && d.part.Size()+int64(len(p)) > want {
			return errors.Join(&SizeError{want: want, got: d.part.Size() + int64(len(p))}, d.part.Reset())
		}
		if _, err := d.part.Write(p); err != nil {
			return &diskError{err}
		}
		d.task.Add(int64(len(p)))
		spare.arrived.Store(d.part.Size())
		switch {
		case errors.Is(readErr, io.EOF):
			return nil
		case readErr != nil && !spare.replaced():
			return s.watch.cause(readErr)
		}
	}
}

// parseContentRange reads "bytes START-END/TOTAL" (RFC 9110 section 14.4). total is -1 when the server does not know it.
func parseContentRange(s string) (start, total int64, ok bool) {
	s, ok = strings.CutPrefix(s, "bytes ")
	if !ok {
		return 0, 0, false
	}
	span, whole, ok := strings.Cut(s, "/")
	if !ok {
		return 0, 0, false
	}
	first, _, ok := strings.Cut(span, "-")
	if !ok {
		return 0, 0, false
	}
	start, err := strconv.ParseInt(first, 10, 64)
	if err != nil || start < 0 {
		return 0, 0, false
	}
	if whole == "*" {
		return start, -1, true
	}
	total, err = strconv.ParseInt(whole, 10, 64)
	return start, total, err == nil && total >= 0
}

// explain says what was being downloaded from where, and what to do about it.
func explain(verb string, r Request, err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("%s %s from %s: %w", verb, r.label(), origin(r.URL), plain(err))
	if hint := cmp.Or(fault.HintOf(err), hintFor(r, err)); hint != "" {
		return fault.Hint(wrapped, hint)
	}
	return wrapped
}

func hintFor(r Request, err error) string {
	var status *StatusError
	var mismatch *store.MismatchError
	switch {
	case errors.As(err, &status):
		return status.hint(r)
	case errors.As(err, &mismatch):
		return "the server has another file than the one that was asked for: check the lock file, or lock again"
	}
	return ""
}

// hostOf is the host of an URL, with its port.
func hostOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Host
}

// origin is the part of an URL that an error may always name.
func origin(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return Redact(raw)
	}
	return u.Scheme + "://" + u.Host
}
