package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// logBucket holds what programs of build steps printed, a file each. Prune removes those of some age.
const logBucket = "logs-v1"

// NewLog makes a file for what a program prints. Its name tells the time and title.
func (s *Store) NewLog(title string) (*os.File, error) {
	if err := s.writable(); err != nil {
		return nil, err
	}
	if err := s.makeDir(s.path(logBucket)); err != nil {
		return nil, fmt.Errorf("write to store: %w", err)
	}
	name := time.Now().Format("20060102-150405-") + fileName(title) + "-*.log"
	f, err := os.CreateTemp(s.path(logBucket), name)
	if err != nil {
		return nil, fmt.Errorf("write to store: %w", err)
	}
	return f, nil
}

// fileName makes a short name of safe characters from any text.
func fileName(text string) string {
	const longest = 40
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_':
			return r
		}
		return '-'
	}, text)
	parts := strings.FieldsFunc(name, func(r rune) bool { return r == '-' })
	name = strings.Join(parts, "-")
	return strings.TrimRight(name[:min(len(name), longest)], "-.")
}

// removeLogs removes logs that are older than what prune keeps.
func (p *pruner) removeLogs() error { return each(p.ours(), p.removeLogsOf) }

func (p *pruner) removeLogsOf(m *Store) error {
	return walkFiles(m.path(logBucket), func(path string, info fs.FileInfo) error {
		if !info.ModTime().Before(p.cutoff) {
			return nil
		}
		p.report.Temps++
		err := p.remove(path, info.Size())
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}
