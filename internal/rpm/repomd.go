package rpm

import (
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sconce.dev/sconce/internal/layer"
)

// maxLocation bounds the path of a repository's file, in bytes.
const maxLocation = 4096

// Index is a file of a repository that its index of indices names.
type Index struct {
	Location string
	Size     int64  // bytes
	SHA256   string // hexadecimal
}

// Repomd is a repository's index of indices, repodata/repomd.xml.
type Repomd struct {
	Date    time.Time        // when its newest index was made
	Indices map[string]Index // by what they list: primary, filelists, …
}

// ParseRepomd reads repomd.xml.
func ParseRepomd(data []byte) (*Repomd, error) {
	var text struct {
		XMLName xml.Name `xml:"repomd"`
		Data    []struct {
			Type     string `xml:"type,attr"`
			Checksum struct {
				Type string `xml:"type,attr"`
				Sum  string `xml:",chardata"`
			} `xml:"checksum"`
			Location struct {
				Href string `xml:"href,attr"`
			} `xml:"location"`
			Timestamp string `xml:"timestamp"`
			Size      int64  `xml:"size"`
		} `xml:"data"`
	}
	if err := xml.Unmarshal(data, &text); err != nil {
		return nil, fmt.Errorf("its index is damaged: %w", err)
	}
	r := &Repomd{Indices: map[string]Index{}}
	for _, d := range text.Data {
		index := Index{Location: d.Location.Href, Size: d.Size, SHA256: strings.TrimSpace(d.Checksum.Sum)}
		if d.Checksum.Type != "sha256" || !isSHA256(index.SHA256) {
			continue // nothing that could be checked
		}
		if err := checkLocation(index.Location); err != nil {
			return nil, fmt.Errorf("its index names a file wrongly: %w", err)
		}
		r.Indices[d.Type] = index
		seconds, err := strconv.ParseFloat(strings.TrimSpace(d.Timestamp), 64)
		if err != nil || seconds < 0 || seconds > 1<<40 {
			return nil, fmt.Errorf("its index was made at %.40q, which is no time", d.Timestamp)
		}
		if t := time.Unix(int64(seconds), 0).UTC(); t.After(r.Date) {
			r.Date = t
		}
	}
	if _, ok := r.Indices["primary"]; !ok {
		return nil, errors.New("its index names no list of packages with a SHA-256")
	}
	return r, nil
}

func isSHA256(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 32 && strings.ToLower(s) == s
}

// checkLocation wants a path below the repository's address.
func checkLocation(location string) error { return layer.CheckPath(location, maxLocation) }
