package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"golang.org/x/term"

	"sconce.dev/sconce/internal/ui"
)

// tableGap is the space between two columns of a table, in columns of the terminal.
const tableGap = 3

// printTable prints rows in columns, the first row being the heads. On a terminal that is too narrow cells are broken into
// lines, and where that is not enough each row becomes a paragraph; elsewhere, where programs read it, a row is a line.
func printTable(w io.Writer, rows [][]string) error { return printTableIn(w, rows, terminalWidth(w)) }

// printTableIn prints a table into so many columns; 0 is any number.
func printTableIn(w io.Writer, rows [][]string, width int) error {
	for _, row := range rows {
		for i := range row {
			row[i] = ui.Clean(row[i])
		}
	}
	if width > 0 {
		if rows = fitTable(rows, width); tableWidth(rows) > width {
			_, err := io.WriteString(w, paragraphs(rows, width))
			return err
		}
	}
	var table strings.Builder
	tw := tabwriter.NewWriter(&table, 0, 0, tableGap, ' ', 0)
	for _, row := range rows {
		if _, err := fmt.Fprintln(tw, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(table.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// terminalWidth is how many columns a terminal has, 0 when w is none.
func terminalWidth(w io.Writer) int {
	if d, ok := w.(dataWriter); ok {
		w = d.Writer
	}
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			return width
		}
	}
	return 0
}

// continued sets off what follows the first line of a first cell, so that it does not look like another row.
const continued = "  "

// fitTable breaks cells where they allow it, so that the table is no wider than width. The widest columns give way first. A table
// that would still be too wide stays as it is.
func fitTable(rows [][]string, width int) [][]string {
	widths, least := columnWidths(rows)
	total := tableWidth(rows)
	if total <= width {
		return rows
	}
	for ; total > width; total-- {
		widest := -1
		for i, n := range widths {
			if n > least[i] && (widest < 0 || n > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return rows
		}
		widths[widest]--
	}
	var fitted [][]string
	for _, row := range rows {
		fitted = append(fitted, breakRow(row, widths)...)
	}
	return fitted
}

// tableWidth is how wide a table is.
func tableWidth(rows [][]string) int {
	widths, _ := columnWidths(rows)
	total := tableGap * max(0, len(widths)-1)
	for _, n := range widths {
		total += n
	}
	return total
}

// paragraphs writes each row of a table as a paragraph: its first cell, and below that the others, each with its head, as many to a line as
// fit. A cell that says nothing is left out.
func paragraphs(rows [][]string, width int) string {
	var b strings.Builder
	for _, row := range rows[1:] {
		b.WriteString(row[0])
		free := 0
		for i, cell := range row[1:] {
			if cell == "" || cell == "-" {
				continue
			}
			said := rows[0][i+1] + " " + cell
			if size := utf8.RuneCountInString(said); tableGap+size <= free {
				b.WriteString(strings.Repeat(" ", tableGap) + said)
				free -= tableGap + size
			} else {
				b.WriteString("\n" + continued + wrap(said, width, continued+continued, len(continued)))
				free = width - len(continued) - size
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// columnWidths is how wide each column is, and how wide it has to be at least.
func columnWidths(rows [][]string) (widths, least []int) {
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths, least = append(widths, 0), append(least, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			for n, piece := range pieces(cell) {
				size := utf8.RuneCountInString(strings.TrimRight(piece, " "))
				if i == 0 && n > 0 {
					size += len(continued)
				}
				least[i] = max(least[i], size)
			}
		}
	}
	return widths, least
}

// pieces cuts a cell wherever it may be broken: behind spaces, and in names behind slashes and underscores.
func pieces(cell string) []string {
	var list []string
	for cell != "" {
		n := strings.IndexAny(cell[1:], " /_") + 2 // a name may begin with one
		if n == 1 {
			n = len(cell)
		}
		list, cell = append(list, cell[:n]), cell[n:]
	}
	return list
}

// breakRow makes as many rows of one as its highest cell has lines.
func breakRow(row []string, widths []int) [][]string {
	rows := [][]string{make([]string, len(row))}
	for i, cell := range row {
		for n, line := range breakCell(cell, widths[i], i == 0) {
			if n == len(rows) {
				rows = append(rows, make([]string, len(row)))
			}
			rows[n][i] = line
		}
	}
	return rows
}

func breakCell(cell string, width int, first bool) []string {
	if utf8.RuneCountInString(cell) <= width {
		return []string{cell}
	}
	lines := []string{""}
	for _, piece := range pieces(cell) {
		last := &lines[len(lines)-1]
		if *last != "" && utf8.RuneCountInString(*last+strings.TrimRight(piece, " ")) > width {
			if piece = strings.TrimLeft(piece, " "); first {
				piece = continued + piece
			}
			*last = strings.TrimRight(*last, " ")
			lines = append(lines, piece)
			continue
		}
		*last += piece
	}
	return lines
}
