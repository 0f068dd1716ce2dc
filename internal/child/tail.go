package child

// Tail keeps the end of what a program says.
type Tail struct{ text []byte }

// maxTail is how much is kept, in bytes.
const maxTail = 64 << 10

// Write never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	if over := len(t.text) - maxTail; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

func (t *Tail) String() string { return string(t.text) }
