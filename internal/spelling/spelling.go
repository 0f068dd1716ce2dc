// Package spelling finds the word that somebody meant who wrote another, and the one spelling of names that have several.
package spelling

import "strings"

// Nearest returns the candidate that word most likely stands for, or "". Case and the choice between "-" and "_" do not
// count as differences; otherwise about one letter in three may be wrong. Of several as near, the first is taken.
func Nearest(word string, candidates []string) string {
	best, limit := "", max(1, len(word)/3)
	for _, c := range candidates {
		if d := distance(fold(word), fold(c)); d <= limit {
			best, limit = c, d-1
		}
	}
	return best
}

func fold(s string) string { return strings.ReplaceAll(strings.ToLower(s), "_", "-") }

// maxDistance bounds the words that are compared, in bytes: no key is near a longer one.
const maxDistance = 64

// distance is the number of letters to insert, delete, replace or swap with their neighbour to make b of a
// (Levenshtein's distance with transpositions).
func distance(a, b string) int {
	if len(a) > maxDistance || len(b) > maxDistance {
		return maxDistance
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
