package config

import (
	"errors"
	"strconv"
	"strings"

	"sconce.dev/sconce/internal/units"
)

// Size is how much a store may hold: bytes, or a share of the file system that it is on.
type Size struct {
	Bytes int64   // 0: see Share
	Share float64 // of the file system's size, 0 < Share <= 1; 0 together with Bytes 0: no limit
}

// ParseSize reads "200GB", "30%" or "none".
func ParseSize(s string) (Size, error) {
	if s == "none" {
		return Size{}, nil
	}
	if percent, ok := strings.CutSuffix(s, "%"); ok {
		share, err := strconv.ParseFloat(strings.TrimSpace(percent), 64)
		if err != nil || !(share > 0 && share <= 100) {
			return Size{}, errors.New(`a share of the disk is more than 0% and at most 100%`)
		}
		return Size{Share: share / 100}, nil
	}
	n, err := units.ParseSize(s)
	if err == nil && n == 0 {
		err = errors.New(`write a size like "200GB", a share of the disk like "30%", or "none" for no limit`)
	}
	return Size{Bytes: n}, err
}

// Of is the limit in bytes on a file system of that many bytes; 0 is no limit.
func (s Size) Of(disk int64) int64 {
	if s.Bytes > 0 {
		return s.Bytes
	}
	return int64(s.Share * float64(disk))
}
