package cli

import (
	"context"
	"strconv"
	"time"

	"sconce.dev/sconce/internal/store"
	"sconce.dev/sconce/internal/ui"
	"sconce.dev/sconce/internal/units"
	"sconce.dev/sconce/internal/users"
)

// cacheUser is a user of the store, as `sconce cache info --by-user` shows them.
type cacheUser struct {
	Name string `json:"name"` // the number where it is not known
	store.UserUsage
	Limit int64 `json:"limit,omitempty"` // bytes that the user may have; 0: no limit
}

func (a *app) runCacheUsers(ctx context.Context, asJSON bool) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	limits, _, err := a.storeLimits(s.Store)
	if err != nil {
		return err
	}
	found, err := s.Store.Users()
	if err != nil {
		return err
	}
	rows := make([]cacheUser, len(found))
	for i, u := range found {
		rows[i] = cacheUser{Name: users.Name(u.UID), UserUsage: u}
		if limits.OfUser != nil {
			rows[i].Limit = limits.OfUser(u.UID)
		}
	}
	if asJSON {
		return a.printJSON(rows)
	}
	return a.printCacheUsers(rows)
}

func (a *app) printCacheUsers(shares []cacheUser) error {
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
