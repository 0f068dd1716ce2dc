package fetch

import (
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/store/storetest"
	"sconce.dev/sconce/internal/tooltest"
)

// Files that do not fit are refused before the first of them comes; what is here, what comes twice and what nobody knows the size of do not count.
func TestCheckRoom(t *testing.T) {
	st, err := store.Open(t.Context(), tooltest.SmallDisk(t, "size=4m"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	here := randomBytes(1 << 20)
	if _, err := st.PutBlob(here); err != nil {
		t.Fatal(err)
	}
	half := randomBytes(3 << 20)
	part, err := st.OpenPartial(store.DigestOf(half))
	if err != nil {
		t.Fatal(err)
	}
	_, err = part.Write(half[:1<<20])
	if closeErr := part.Close(); err != nil || closeErr != nil { // 2 MiB are left
		t.Fatal(err, closeErr)
	}
	file := func(name string, size int64) Request {
		return Request{Digest: store.DigestOf([]byte(name)), Size: size}
	}
	of := func(data []byte) Request { return Request{Digest: store.DigestOf(data), Size: int64(len(data))} }
	for name, c := range map[string]struct {
		files []Request
		fits  bool
	}{
		"nothing":                    {nil, true},
		"small ones":                 {[]Request{file("a", 900_000), file("b", 900_000)}, true},
		"one that is too large":      {[]Request{file("a", 3_000_000)}, false},
		"many":                       {[]Request{file("a", 900_000), file("b", 900_000), file("c", 900_000)}, false},
		"one that is here":           {[]Request{of(here), of(here), file("a", 1_500_000)}, true},
		"one of which a part came":   {[]Request{of(half)}, true}, // 3 MiB in all
		"and another":                {[]Request{of(half), file("a", 500_000)}, false},
		"one twice":                  {[]Request{file("a", 1_500_000), file("a", 1_500_000)}, true},
		"of a size not known":        {[]Request{file("a", 0), file("b", 1_500_000)}, true},
		"too large beside not known": {[]Request{file("a", 0), file("b", 5_000_000)}, false},
	} {
		err := CheckRoom(st, c.files)
		if c.fits != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "has room for 2.") && !strings.Contains(err.Error(), "has room for 1.") || !strings.Contains(fault.HintOf(err), "cache prune")) {
			t.Errorf("%s: error %q with hint %q", name, err, fault.HintOf(err))
		}
	}
}

// What a site's store has takes no room in the own one.
func TestCheckRoomShared(t *testing.T) {
	site := storetest.New(t)
	large := randomBytes(3 << 20)
	if _, err := site.PutBlob(large); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SCONCE_SHARED_STORES", site.Dir())
	st, err := store.Open(t.Context(), tooltest.SmallDisk(t, "size=2m"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if err := CheckRoom(st, []Request{{Digest: store.DigestOf(large), Size: int64(len(large))}}); err != nil {
		t.Error(err)
	}
}

// No request is made when not all of it fits.
func TestBlobsThatDoNotFit(t *testing.T) {
	st, err := store.Open(t.Context(), tooltest.SmallDisk(t, "size=2m"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	one, two := randomBytes(1<<20), randomBytes(3<<19)
	srv := serve(t, one, nil)
	var requests []Request
	for _, data := range [][]byte{one, two} {
		requests = append(requests, Request{URL: srv.URL, Digest: store.DigestOf(data), Size: int64(len(data))})
	}
	if err := fast(st).Blobs(t.Context(), requests); err == nil || !strings.Contains(err.Error(), "downloads of 2.6 MB are to come") {
		t.Errorf("error %v", err)
	}
	if n := srv.gets.Load(); n != 0 {
		t.Errorf("%d requests were made", n)
	}
}
