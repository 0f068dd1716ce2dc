package cotainr

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"sconce.dev/sconce/internal/fault"
)

// maxAnswers is how often a question is asked before the answer is taken for a no, as cotainr has it.
const maxAnswers = 1000

// ask asks a question until it is answered by yes or no, in any case and with nothing around it. The end of the input is an error.
func (a *App) ask(ctx context.Context, question string) (bool, error) {
	in := bufio.NewReader(a.Stdin)
	prompt := question + " [yes/no]\n>>> "
	for range maxAnswers {
		if _, err := io.WriteString(a.Stdout, prompt); err != nil {
			return false, err
		}
		answer, err := readLine(ctx, in)
		if err != nil {
			return false, unanswered(err)
		}
		switch strings.ToLower(answer) {
		case "yes":
			return true, nil
		case "no":
			return false, nil
		}
		prompt = fmt.Sprintf("You answered \"%s\". Please answer yes or no.\n>>> ", visible(answer))
	}
	fmt.Fprintf(a.Stderr, "You provided an invalid answer %d times in a row. Now assuming you meant \"no\".\n", maxAnswers)
	return false, nil
}

// readLine reads a line, unless the user has enough of it first. The last line needs no end.
func readLine(ctx context.Context, in *bufio.Reader) (string, error) {
	type line struct {
		text string
		err  error
	}
	lines := make(chan line, 1)
	go func() {
		text, err := in.ReadString('\n')
		lines <- line{text, err}
	}()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case l := <-lines:
		if errors.Is(l.err, io.EOF) && l.text != "" {
			l.err = nil
		}
		return strings.TrimSuffix(l.text, "\n"), l.err
	}
}

func unanswered(err error) error {
	if errors.Is(err, io.EOF) {
		return fault.Hint(errors.New("the question has no answer: standard input is at its end"), "answer it beforehand: echo yes | cotainr build ...")
	}
	return fmt.Errorf("read the answer: %w", err)
}

// visible leaves out what would move the cursor.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, s)
}
