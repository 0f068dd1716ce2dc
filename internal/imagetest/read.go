package imagetest

// The readers of what tests print.
const (
	Lines = "lines"
	JSON  = "json"
	Table = "table"
)

// Readers lists them.
var Readers = []string{Lines, JSON, Table}
