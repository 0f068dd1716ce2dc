package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTablesFitTheTerminal(t *testing.T) {
	rows := [][]string{
		{"LIBRARY", "KEPT", "DROPPED", "AFTER"},
		{"nvidia/cudnn/lib/libcudnn_engines_precompiled.so.9", "90 90a", "75 80 86 89 100 100a 103a 120 120a 121a", "9.9 MB"},
		{"torch/lib/libtorch_cuda.so", "90", "", "1.0 GB"},
	}
	for _, width := range []int{60, 80, 100, 200} {
		fitted := fitTable(rows, width)
		var b bytes.Buffer
		if err := printTable(&b, fitted); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
				t.Errorf("%d columns on a terminal of %d: %s", n, width, line)
			}
		}
		var words [4]string // of each column, put together again
		for _, row := range fitted[1:] {
			for i, cell := range row {
				words[i] += strings.ReplaceAll(cell, " ", "")
			}
		}
		for i := range words {
			if want := strings.ReplaceAll(rows[1][i]+rows[2][i], " ", ""); words[i] != want {
				t.Errorf("width %d, column %d: %q, want %q", width, i, words[i], want)
			}
		}
	}
	if !slices.EqualFunc(fitTable(rows, 200), rows, slices.Equal) {
		t.Error("a table that fits was changed")
	}
}

// What cannot be broken stays whole, however narrow the terminal is.
func TestTablesKeepWords(t *testing.T) {
	rows := [][]string{{"NAME", "DIGEST"}, {"a b", "9b3c1f0e77aa"}}
	if got := fitTable(rows, 5); got[1][1] != "9b3c1f0e77aa" {
		t.Errorf("%q", got)
	}
	if got := fitTable(nil, 5); got != nil {
		t.Errorf("%q of nothing", got)
	}
}

// What cannot be a table on a terminal is paragraphs there, that say the same.
func TestParagraphs(t *testing.T) {
	rows := [][]string{
		{"CLUSTER", "GPU", "PLATFORM", "FABRIC", "DESCRIPTION"},
		{"clariden", "9.0", "linux/arm64", "slingshot", "CSCS Alps: 4 GH200 a node, for machine learning and more of the kind"},
		{"two", "-", "linux/amd64", "", "-"},
	}
	want := `clariden
  GPU 9.0   PLATFORM linux/arm64   FABRIC slingshot
  DESCRIPTION CSCS Alps: 4 GH200 a node, for machine
    learning and more of the kind
two
  PLATFORM linux/amd64
`
	if got := paragraphs(rows, 52); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, width := range []int{52, 49} {
		for line := range strings.Lines(paragraphs(rows, width)) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
				t.Errorf("%d columns on a terminal of %d: %s", n, width, line)
			}
		}
	}
	if got := tableWidth(rows); got != 8+3+11+9+68+4*3 {
		t.Errorf("the table is said to be %d wide", got)
	}
}
