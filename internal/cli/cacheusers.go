package cli

import (
	"context"
	"strconv"
	"time"

	"sconce.dev/sconce/internal/engine"
	"sconce.dev/sconce/internal/ui"
	"sconce.dev/sconce/internal/units"
)

func (a *app) runCacheUsers(ctx context.Context, asJSON bool) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	found, err := s.CacheUsers(a.settings())
	if err != nil {
		return err
	}
	if asJSON {
		return a.printJSON(found)
	}
	return a.printCacheUsers(found)
}

func (a *app) printCacheUsers(shares []engine.CacheUser) error {
	rows := [][]string{{"USER", "HAS", "OF", "IMAGES", "NEED", "ALONE", "USED"}}
	for _, u := range shares {
		limit, used := "", "never"
		if u.Limit > 0 {
			limit = units.Size(u.Limit)
		}
		if !u.Used.IsZero() {
			used = units.Ago(u.Used, time.Now())
		}
		rows = append(rows, []string{
			ui.Clean(u.Name), units.Size(u.Total()), limit, strconv.Itoa(len(u.Images)), units.Size(u.Needs), units.Size(u.Alone), used,
		})
	}
	return printTable(a.out, rows)
}
