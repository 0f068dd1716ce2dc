package python

import (
	"archive/zip"
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/inflate"
	"sconce.dev/sconce/internal/layer"
	"sconce.dev/sconce/internal/zipread"
)

// Limits on what a wheel may claim. Each is far above the largest wheel known (torch: 1 GB packed, 12,000 members) and
// only there so that a hostile file costs bounded memory and time.
const (
	maxDirectory  = 64 << 20 // bytes read to list the members
	maxMembers    = 300_000
	maxMemberSize = 32 << 30 // bytes, unpacked
	maxWheelSize  = 64 << 30 // bytes, unpacked, all members
	maxPath       = 1024     // bytes in a member's name
	maxMetadata   = 32 << 20 // bytes in a file that is read whole: METADATA, RECORD, entry_points.txt
)

// Wheel is an open wheel (PEP 427; packaging.python.org, "Binary distribution format"). Opening checks its structure;
// the bytes of each member are checked while they are read. Members may be read from many goroutines.
type Wheel struct {
	File          string // the file's name
	Name          string // the distribution's name, as METADATA spells it
	Version       string
	Tags          []string // as the WHEEL file lists them, expanded ones too
	DistInfo      string   // the metadata directory: numpy-2.2.6.dist-info
	DataDir       string   // where files for other places are: numpy-2.2.6.data; there may be none
	RootIsPurelib bool
	Metadata      Metadata
	EntryPoints   EntryPoints
	Members       []*Member // the files, sorted by name

	complaints complaints

	opening sync.Mutex      // is held while a member is opened, for what follows
	points  int64           // how far apart the points of its stream shall be
	opened  *memberInflater // what inflates it
}

// Member is one file in a wheel.
type Member struct {
	Name       string // slash-separated, clean, relative
	Size       int64  // unpacked, in bytes
	Packed     int64  // as stored, in bytes
	Executable bool   // an executable bit is set in the archive

	wheel *Wheel
	zip   *zip.File
	hash  recordHash // as RECORD gives it; zero for what RECORD need not list
}

// WheelError says what is wrong with a wheel, and where in it.
type WheelError struct {
	File   string // the wheel's file name
	Member string // the file in it; empty when it is the wheel as a whole
	Err    error
}

func (e *WheelError) Error() string {
	if e.Member == "" {
		return fmt.Sprintf("wheel %s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("wheel %s: %s: %v", e.File, e.Member, e.Err)
}

func (e *WheelError) Unwrap() error { return e.Err }

// Hint says what can be done about it: wheels come from others.
func (e *WheelError) Hint() string {
	if h := fault.HintOf(e.Err); h != "" {
		return h
	}
	return "the wheel is damaged or was not made by the rules; choose another version of the package, or tell its makers"
}

func (w *Wheel) bad(member, format string, args ...any) error {
	return &WheelError{File: w.File, Member: member, Err: fmt.Errorf(format, args...)}
}

// OpenWheel opens the wheel that r holds. size is in bytes; name is the wheel's file name, which says what it should
// contain. r must stay open as long as the wheel is used.
func OpenWheel(r io.ReaderAt, size int64, name string) (*Wheel, error) {
	w := &Wheel{File: name}
	file, err := parseFileName(name)
	if err != nil {
		return nil, &WheelError{File: name, Err: err}
	}
	if err := w.readDirectory(r, size); err != nil {
		return nil, err
	}
	if err := w.readDistInfo(file); err != nil {
		return nil, err
	}
	if err := w.readEntryPoints(); err != nil { // before RECORD says a hash of it, which may be wrong
		return nil, err
	}
	return w, w.readRecord()
}

// fileName is what a wheel's file name says.
type fileName struct{ name, version string }

// parseFileName takes apart {distribution}-{version}(-{build tag})?-{python tag}-{abi tag}-{platform tag}.whl.
func parseFileName(s string) (fileName, error) {
	base, ok := strings.CutSuffix(s, ".whl")
	parts := strings.Split(base, "-")
	if !ok || len(parts) < 5 || len(parts) > 6 || slices.Contains(parts, "") || strings.ContainsAny(s, "/\\\x00") {
		return fileName{}, errors.New("the file is not named as a wheel is: name-version-python-abi-platform.whl")
	}
	return fileName{parts[0], parts[1]}, nil
}

// readDirectory lists the archive's members, refusing every one that could be laid down anywhere but below the root.
func (w *Wheel) readDirectory(r io.ReaderAt, size int64) error {
	limited := &budgetReaderAt{r: r, left: maxDirectory}
	z, err := zip.NewReader(limited, size)
	if err != nil {
		return w.bad("", "read the archive's directory: %w", err)
	}
	limited.unlimited = true
	z.RegisterDecompressor(zip.Deflate, w.inflateMember)
	if len(z.File) > maxMembers {
		return w.bad("", "it has %d members; more than %d are not believed", len(z.File), maxMembers)
	}
	var total int64
	for _, f := range z.File {
		if err := checkMember(f); err != nil {
			return &WheelError{File: w.File, Member: f.Name, Err: err}
		}
		if strings.HasSuffix(f.Name, "/") {
			continue // directories come into being with their files
		}
		mode := f.ExternalAttrs >> 16
		m := &Member{
			Name: f.Name, Size: int64(f.UncompressedSize64), Packed: int64(f.CompressedSize64),
			Executable: mode&0o111 != 0, wheel: w, zip: f,
		}
		if total += m.Size; total > maxWheelSize {
			return w.bad("", "its members unpack to more than %d bytes", int64(maxWheelSize))
		}
		w.Members = append(w.Members, m)
	}
	slices.SortFunc(w.Members, func(a, b *Member) int { return strings.Compare(a.Name, b.Name) })
	return cmp.Or(w.checkClashes(z.File), w.checkOneReading(z, r, size))
}

// The file type in the Unix mode that external attributes carry.
const (
	modeType    = 0o170000
	modeRegular = 0o100000
	modeDir     = 0o040000
)

// encrypted is the bit of a member's general purpose flags that says so.
const encrypted = 1 << 0

// checkMember refuses a member that a wheel must not have, whatever its content.
func checkMember(f *zip.File) error {
	if err := checkPath(strings.TrimSuffix(f.Name, "/")); err != nil {
		return err
	}
	switch t := f.ExternalAttrs >> 16 & modeType; {
	case t != 0 && t != modeRegular && t != modeDir:
		return errors.New("it is a symbolic link or a special file, which wheels cannot contain")
	case (t == modeDir) != strings.HasSuffix(f.Name, "/") && t != 0:
		return errors.New("its name and its mode disagree on whether it is a directory")
	case strings.HasSuffix(f.Name, "/") && f.UncompressedSize64 != 0:
		return errors.New("it is a directory with content")
	case f.NonUTF8:
		return errors.New("its name is not marked as UTF-8, and is another one to other programs")
	case f.Flags&encrypted != 0:
		return errors.New("it is encrypted")
	case f.Method != zip.Store && f.Method != zip.Deflate:
		return fmt.Errorf("it is compressed by method %d; wheels use 0 (stored) and 8 (deflate)", f.Method)
	case f.UncompressedSize64 > maxMemberSize:
		return fmt.Errorf("it claims to unpack to %d bytes; more than %d are not believed", f.UncompressedSize64, int64(maxMemberSize))
	case f.Method == zip.Store && f.UncompressedSize64 != f.CompressedSize64:
		return errors.New("it is stored, but its two sizes differ")
	}
	return nil
}

// checkPath is [layer.CheckPath] for names of a wheel.
func checkPath(name string) error {
	if strings.Contains(name, "\\") {
		return errors.New(`its name contains a backslash; wheels separate directories by "/"`)
	}
	return layer.CheckPath(name, maxPath)
}

// checkClashes refuses two members of one name, and a file where another member needs a directory.
func (w *Wheel) checkClashes(all []*zip.File) error {
	dirs := make(map[string]bool)
	for _, f := range all {
		name, isDir := strings.CutSuffix(f.Name, "/")
		if !isDir {
			name = path.Dir(f.Name)
		}
		for ; name != "." && !dirs[name]; name = path.Dir(name) {
			dirs[name] = true
		}
	}
	for i, m := range w.Members {
		if i > 0 && w.Members[i-1].Name == m.Name {
			return w.bad(m.Name, "it is there twice")
		}
		if dirs[m.Name] {
			return w.bad(m.Name, "it is a file, and also the directory of other files")
		}
	}
	return nil
}

// checkOneReading refuses an archive of which another program reads something else, and members that share bytes of it: no honest writer makes
// them, and they are how a small file unpacks to a huge one (D. Fifield, "A better zip bomb").
func (w *Wheel) checkOneReading(z *zip.Reader, r io.ReaderAt, size int64) error {
	if err := zipread.Check(z, r, size); err != nil {
		return w.bad("", "%w", err)
	}
	return nil
}

// budgetReaderAt stops a reader that reads more than it should need to.
type budgetReaderAt struct {
	r         io.ReaderAt
	left      int64
	unlimited bool // set before the reader is shared between goroutines
}

func (b *budgetReaderAt) ReadAt(p []byte, off int64) (int, error) {
	if !b.unlimited {
		if b.left -= int64(len(p)); b.left < 0 {
			return 0, fmt.Errorf("it is larger than %d bytes", maxDirectory)
		}
	}
	return b.r.ReadAt(p, off)
}

// readDistInfo finds the metadata directory and checks that it is about the package that the file name promises.
func (w *Wheel) readDistInfo(file fileName) error {
	for _, m := range w.Members {
		top, _, _ := strings.Cut(m.Name, "/")
		switch {
		case top == w.DistInfo || !strings.HasSuffix(top, ".dist-info"):
		case w.DistInfo != "":
			return w.bad("", "it has two metadata directories, %s and %s", w.DistInfo, top)
		default:
			w.DistInfo = top
		}
	}
	if w.DistInfo == "" {
		return w.bad("", "it has no *.dist-info directory")
	}
	w.DataDir = strings.TrimSuffix(w.DistInfo, ".dist-info") + ".data"
	name, version, ok := strings.Cut(strings.TrimSuffix(w.DistInfo, ".dist-info"), "-")
	if !ok || NormalizeName(name) != NormalizeName(file.name) || !sameVersion(version, file.version) {
		return w.bad(w.DistInfo, "the directory is not that of %s %s, which the file name promises", file.name, file.version)
	}
	if err := w.readWheelFile(); err != nil {
		return err
	}
	return w.readMetadata(file)
}

func (w *Wheel) readWheelFile() error {
	at := w.DistInfo + "/WHEEL"
	data, err := w.readAll(at)
	if err != nil {
		return err
	}
	h, err := parseHeaders(data)
	if err != nil {
		return w.bad(at, "%w", err)
	}
	if major, _, _ := strings.Cut(h.get("Wheel-Version"), "."); major != "1" {
		err := fmt.Errorf("its format is version %q; this program reads 1.x", h.get("Wheel-Version"))
		return &WheelError{w.File, at, fault.Hint(err, "a newer sconce may read it")}
	}
	w.RootIsPurelib = strings.EqualFold(h.get("Root-Is-Purelib"), "true")
	w.Tags = h["tag"]
	return nil
}

func (w *Wheel) readMetadata(file fileName) error {
	at := w.DistInfo + "/METADATA"
	data, err := w.readAll(at)
	if err != nil {
		return err
	}
	if w.Metadata, err = ParseMetadata(data); err != nil {
		return w.bad(at, "%w", err)
	}
	w.Name, w.Version = w.Metadata.Name, w.Metadata.Version
	if NormalizeName(w.Name) != NormalizeName(file.name) || !sameVersion(w.Version, file.version) {
		return w.bad(at, "it describes %s %s, but the file name promises %s %s", w.Name, w.Version, file.name, file.version)
	}
	return nil
}

// sameVersion compares two versions by PEP 440. A "-" cannot stand in a file name, where "_" takes its place.
func sameVersion(a, b string) bool {
	if a == b {
		return true
	}
	va, errA := ParseVersion(strings.ReplaceAll(a, "_", "-"))
	vb, errB := ParseVersion(strings.ReplaceAll(b, "_", "-"))
	return errA == nil && errB == nil && va.Compare(vb) == 0
}

// readRecord reads RECORD and gives every member the hash that it has there. By the specification ("Installing a wheel") any
// file not both mentioned and correctly hashed in RECORD fails the installation; no installer does so, wheels are made
// accordingly, and who locks vouches for the whole of them. What does not fit is complained about.
func (w *Wheel) readRecord() error {
	at := w.DistInfo + "/RECORD"
	data, err := w.readAll(at)
	if err != nil {
		return err
	}
	listed, found, err := parseRecord(data)
	if err != nil {
		return w.bad(at, "%w", err)
	}
	w.complaints = found
	for _, m := range w.Members {
		line, ok := listed[m.Name]
		delete(listed, m.Name)
		switch {
		case w.unsigned(m.Name):
		case !ok:
			w.complaints.add(m.Name, "RECORD does not list it")
		case line.hash.algorithm == "":
			w.complaints.add(m.Name, "RECORD lists it without a hash to check it by")
		case line.size >= 0 && line.size != m.Size:
			w.complaints.add(m.Name, "it has %d bytes, but RECORD says %d", m.Size, line.size)
		default:
			m.hash = line.hash
		}
	}
	for _, name := range sortedKeys(listed) {
		if !w.unsigned(name) {
			w.complaints.add(name, "RECORD lists it, but the wheel does not contain it")
		}
	}
	return nil
}

// measure reads every member and puts its hash in the place of the one that RECORD gives, complaining where they differ.
func (w *Wheel) measure() error {
	for _, m := range w.Members {
		said := m.hash
		if said.algorithm == "" {
			continue // it is read when its hash is needed
		}
		m.hash = recordHash{}
		sum, own := sha256.New(), said.new()
		if err := m.copyTo(io.MultiWriter(sum, own)); err != nil {
			return err
		}
		m.hash = recordHash{"sha256", encodeSHA256(sum.Sum(nil))}
		if encodeSHA256(own.Sum(nil)) != said.value {
			w.complaints.add(m.Name, "its hash is not the one in RECORD")
		}
	}
	return nil
}

func (m *Member) copyTo(w io.Writer) error {
	r, err := m.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(w, r)
	return err
}

// unsigned says whether name is RECORD or one of its signatures, the files that RECORD cannot hash.
func (w *Wheel) unsigned(name string) bool {
	switch rest, _ := strings.CutPrefix(name, w.DistInfo+"/"); rest {
	case "RECORD", "RECORD.jws", "RECORD.p7s":
		return true
	}
	return false
}

func (w *Wheel) readEntryPoints() error {
	at := w.DistInfo + "/entry_points.txt"
	if w.member(at) == nil {
		return nil
	}
	data, err := w.readAll(at)
	if err != nil {
		return err
	}
	if w.EntryPoints, err = ParseEntryPoints(data); err != nil {
		return w.bad(at, "%w", err)
	}
	return nil
}

func (w *Wheel) member(name string) *Member {
	i, ok := slices.BinarySearchFunc(w.Members, name, func(m *Member, n string) int { return strings.Compare(m.Name, n) })
	if !ok {
		return nil
	}
	return w.Members[i]
}

// readAll reads one of the metadata files.
func (w *Wheel) readAll(name string) ([]byte, error) {
	m := w.member(name)
	if m == nil {
		return nil, w.bad(name, "it is missing")
	}
	return m.readAll(maxMetadata)
}

func (m *Member) readAll(limit int64) ([]byte, error) {
	if m.Size > limit {
		return nil, m.wheel.bad(m.Name, "it has %d bytes; more than %d are not believed", m.Size, limit)
	}
	r, err := m.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	// The declared size is only a claim: memory grows with what is really there.
	buf := bytes.NewBuffer(make([]byte, 0, min(m.Size, 1<<20)+bytes.MinRead))
	if _, err := buf.ReadFrom(r); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// Open opens the member's bytes. Reading ends in an error instead of io.EOF when they are not those that RECORD vouches
// for, or not as many as the archive declares.
func (m *Member) Open() (io.ReadCloser, error) {
	r, _, err := m.open(0)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// open is Open. Of a deflated member it also returns what inflates it, with points that far apart; see [inflate.Options].
func (m *Member) open(points int64) (*memberReader, *memberInflater, error) {
	w := m.wheel
	w.opening.Lock()
	defer w.opening.Unlock()
	w.points, w.opened = points, nil
	r, err := m.zip.Open()
	if err != nil {
		return nil, nil, w.bad(m.Name, "open it: %w", err)
	}
	return &memberReader{m: m, r: r, hash: m.hash.new(), left: m.Size}, w.opened, nil
}

// deflated says whether the member is a raw DEFLATE stream.
func (m *Member) deflated() bool { return m.zip.Method == zip.Deflate }

// openPacked opens the member's bytes as the archive has them, Packed of them. They are what [Member.Open] unpacks: that
// fails when the stream ends before they do.
func (m *Member) openPacked() (io.Reader, error) {
	r, err := m.zip.OpenRaw()
	if err != nil {
		return nil, m.wheel.bad(m.Name, "open it: %w", err)
	}
	return r, nil
}

type memberReader struct {
	m    *Member
	r    io.ReadCloser
	hash hasher
	left int64 // bytes that may still come
	err  error // sticky
}

func (r *memberReader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.r.Read(p)
	r.left -= int64(n)
	if r.left < 0 {
		r.err = r.m.wheel.bad(r.m.Name, "it does not unpack to the %d bytes it declares, but to more", r.m.Size)
		return 0, r.err
	}
	_, _ = r.hash.Write(p[:n]) // a hash never fails
	switch {
	case err == io.EOF:
		r.err = r.end()
	case errors.Is(err, zip.ErrFormat), errors.Is(err, io.ErrUnexpectedEOF):
		r.err = r.m.wheel.bad(r.m.Name, "it does not unpack to the %d bytes it declares: %w", r.m.Size, err)
	case err != nil:
		r.err = r.m.wheel.bad(r.m.Name, "unpack it: %w", err)
	}
	return n, r.err
}

func (r *memberReader) end() error {
	if r.left > 0 {
		return r.m.wheel.bad(r.m.Name, "it unpacks to %d bytes less than it declares", r.left)
	}
	if r.m.hash.algorithm == "" {
		return io.EOF
	}
	if got := base64.RawURLEncoding.EncodeToString(r.hash.Sum(nil)); got != r.m.hash.value {
		return r.m.wheel.bad(r.m.Name, "%w", &recordError{r.m.wheel.File, fmt.Sprintf("its %s is %s, but RECORD says %s", r.m.hash.algorithm, got, r.m.hash.value)})
	}
	return io.EOF
}

// recordError says that a member is not what RECORD says it is.
type recordError struct{ wheel, text string }

func (e *recordError) Error() string { return e.text }

func (r *memberReader) Close() error { return r.r.Close() }

// inflateBuffer is how much of the packed data is read at once; large members are read in few system calls.
const inflateBuffer = 64 << 10

// memberInflater inflates a member and makes sure that nothing follows its stream.
type memberInflater struct {
	buf *bufio.Reader
	r   *inflate.Reader
}

var inflateBuffers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, inflateBuffer) }}

// inflateMember opens the packed data of a member, of which r holds nothing but.
func (w *Wheel) inflateMember(r io.Reader) io.ReadCloser {
	buf := inflateBuffers.Get().(*bufio.Reader)
	buf.Reset(r)
	w.opened = &memberInflater{buf, inflate.NewReader(buf, inflate.Options{Points: w.points})}
	return w.opened
}

func (f *memberInflater) Read(b []byte) (int, error) {
	if f.buf == nil {
		return 0, errors.New("read of a closed file")
	}
	n, err := f.r.Read(b)
	if errors.Is(err, io.EOF) {
		err = f.end()
	}
	return n, err
}

// end makes sure that the stream took all of the packed data. Whoever takes that data as it is, for a layer, would else
// pass on something that nobody has looked at. The decompressor takes no byte too many from a [*bufio.Reader].
func (f *memberInflater) end() error {
	switch _, err := f.buf.ReadByte(); err {
	case nil:
		return errors.New("its compressed stream ends before its packed data does")
	default:
		return err // io.EOF is how it should be
	}
}

func (f *memberInflater) Close() error {
	if f.buf == nil {
		return nil
	}
	f.buf.Reset(nil)
	inflateBuffers.Put(f.buf)
	f.buf = nil
	return f.r.Close()
}
