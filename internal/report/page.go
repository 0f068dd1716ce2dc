package report

import (
	"cmp"
	"crypto/sha256"
	_ "embed" // the page's parts
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"

	"sconce.dev/sconce/internal/audit"
	"sconce.dev/sconce/internal/units"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string
	//go:embed page.js
	pageJS string
)

// pageTemplate is parsed by who makes a page: no other command waits for it.
func pageTemplate() *template.Template {
	return template.Must(template.New("page").Funcs(template.FuncMap{
		"show": shown, "size": units.Size, "number": number, "thousands": thousands,
		"more": func(n int) int { return n - 1 },
	}).Parse(pageHTML))
}

// policy allows the page its own style and script and nothing else (CSP level 3).
var policy = "default-src 'none'; style-src '" + hash(pageCSS) + "'; script-src '" + hash(pageJS) + "'; base-uri 'none'; form-action 'none'"

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// Bounds of what the page lists; whatever the image is, the page can be opened. Where they cut, the page says so.
const (
	maxLines     = 40  // evidence for one finding
	maxSame      = 30  // findings of a rule with the same advice
	maxGroups    = 300 // such groups
	maxLayers    = 300
	maxRows      = 1000 // of other tables
	maxLibraries = 200
)

// page is what the template shows. Texts that come from the image pass shown there.
type page struct {
	*Report
	Policy string
	CSS    template.CSS
	JS     template.JS
	Data   template.JS // JSON, with <, > and & written as escapes

	FilesSize int64
	Count     audit.Count
	Versions  []field
	Python    []pkg
	Sites     []string
	Groups    []findingGroup
	Device    *device
	Rows      []layerRow
	Config    []field
	Unread    []string
	Least     int64 // from this size on, in bytes, the map has all files by name
	Kinds     []string
}

type field struct{ Name, Value string }

// layerRow is a row of the table of layers.
type layerRow struct {
	Layer
	Number int // from 1, the lowest
	Short  string
	Seen   int64 // bytes of files that the image shows
	Hidden int64 // bytes of files that upper layers hide
	Files  int
}

func (r *Report) page() (*page, error) {
	o := newOwners(r.Facts)
	tree := treeOf(r.Files, o, newKinds(r.Facts))
	p := &page{
		Report: r, Policy: policy, CSS: template.CSS(pageCSS), JS: template.JS(pageJS),
		FilesSize: tree.size, Count: audit.CountOf(r.Findings), Versions: r.versions(), Sites: o.sites,
		Groups: groupFindings(r.Findings), Device: newDevice(r.Facts.GPU, o, r.Target.GPU), Rows: r.layerRows(), Config: r.config(),
		Unread: r.unread(), Kinds: kindNames[:],
	}
	p.Python = slices.DeleteFunc(slices.Clone(o.packages[1:]), func(p pkg) bool { return p.Files == 0 })
	slices.SortStableFunc(p.Python, func(a, b pkg) int { return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Name, b.Name)) })
	encoded, least, err := encodeTree(tree)
	if err != nil {
		return nil, err
	}
	p.Least = least
	data, err := json.Marshal(mapData{Tree: encoded, Layers: r.layerNames(), Packages: packageNames(o.packages), Sites: o.sites, Kinds: kindNames[:]})
	p.Data = template.JS(data)
	return p, err
}

// Unlisted is how many findings there was no room for at all.
func (p *page) Unlisted() int {
	n := len(p.Findings)
	for _, g := range p.Groups {
		n -= g.Total()
	}
	return n
}

// Verdict says in a sentence what the findings mean.
func (p *page) Verdict() string {
	there := ""
	if !p.Target.Empty() {
		there = " there"
	}
	switch {
	case p.Count.Errors > 0:
		return "✖ It will not run" + there + " as it is."
	case p.Count.Warnings > 0:
		return "▲ It may not run" + there + " as it should."
	case there == "":
		return "✔ No error was found, nor a warning."
	}
	return "✔ Nothing speaks against running it there."
}

// Rowed are the packages that the table has.
func (p *page) Rowed() []pkg { return p.Python[:min(len(p.Python), maxRows)] }

// mapData is what the script reads.
type mapData struct {
	Tree     json.RawMessage `json:"tree"`
	Layers   []string        `json:"layers"`
	Packages [][2]any        `json:"packages"` // name, index of the site directory
	Sites    []string        `json:"sites"`
	Kinds    []string        `json:"kinds"`
}

func packageNames(packages []pkg) [][2]any {
	names := make([][2]any, len(packages))
	for i := range packages {
		names[i] = [2]any{shown(packages[i].Name), packages[i].Site}
	}
	return names
}

// layerNames says of each layer what made it, in a few words.
func (r *Report) layerNames() []string {
	names := []string{}
	for i := range r.Layers[:min(len(r.Layers), maxLayers)] {
		names = append(names, cut(shown(r.Layers[i].CreatedBy), 100))
	}
	return names
}

func (r *Report) layerRows() []layerRow {
	rows := make([]layerRow, len(r.Layers))
	for i := range r.Layers {
		_, short, _ := strings.Cut(r.Layers[i].Digest, ":")
		rows[i] = layerRow{Layer: r.Layers[i], Number: i + 1, Short: short[:min(12, len(short))]}
	}
	for i := range r.Files {
		if f := &r.Files[i]; f.Layer < len(rows) {
			rows[f.Layer].Seen += f.Size
			rows[f.Layer].Files++
		}
	}
	for i := range rows {
		rows[i].Hidden = max(rows[i].Unpacked-rows[i].Seen, 0)
	}
	return rows[:min(len(rows), maxLayers)]
}

// unread are the files that could not be understood.
func (r *Report) unread() []string {
	all := slices.Clone(r.Facts.Warnings)
	if r.Facts.GPU != nil {
		all = append(all, r.Facts.GPU.Warnings...)
	}
	return all
}

// config is how the image is configured.
func (r *Report) config() []field {
	c := r.Facts.Config
	var fields []field
	add := func(name, value string) {
		switch {
		case value == "" || len(fields) > maxRows:
		case len(fields) == maxRows:
			fields = append(fields, field{"…", "and more, which is left out here"})
		default:
			fields = append(fields, field{name, value})
		}
	}
	quoted := func(words []string) string {
		if len(words) == 0 {
			return ""
		}
		return fmt.Sprintf("%q", words)
	}
	add("Entrypoint", quoted(c.Entrypoint))
	add("Command", quoted(c.Cmd))
	add("Working directory", c.WorkingDir)
	add("User", c.User)
	for _, v := range slices.Sorted(maps.Keys(c.Volumes)) {
		add("Volume", v)
	}
	for _, e := range c.Env {
		add("Environment", e)
	}
	for _, k := range slices.Sorted(maps.Keys(c.Labels)) {
		add("Label", k+"="+c.Labels[k])
	}
	return fields
}

// findingGroup are findings of one rule with the same advice.
type findingGroup struct {
	audit.Finding // the first
	More          []audit.Finding
	Left          int // that are not listed
}

// All are the group's findings that are listed.
func (g findingGroup) All() []audit.Finding { return append([]audit.Finding{g.Finding}, g.More...) }

// Kind is the severity, or "allowed".
func (g findingGroup) Kind() string {
	if g.Allowed != "" {
		return "allowed"
	}
	return string(g.Severity)
}

// Total is how many findings the group has.
func (g findingGroup) Total() int { return 1 + len(g.More) + g.Left }

// groupFindings puts neighbours of a rule together; those that are allowed come last.
func groupFindings(findings []audit.Finding) []findingGroup {
	sorted := slices.Clone(findings)
	slices.SortStableFunc(sorted, func(a, b audit.Finding) int {
		return cmp.Compare(min(len(a.Allowed), 1), min(len(b.Allowed), 1))
	})
	var groups []findingGroup
	for _, f := range sorted {
		if n := len(groups); n > 0 && groups[n-1].takes(&f) {
			groups[n-1].add(f)
			continue
		}
		if len(groups) == maxGroups {
			break
		}
		groups = append(groups, findingGroup{Finding: bounded(f)})
	}
	return groups
}

func (g *findingGroup) takes(f *audit.Finding) bool {
	return g.Rule == f.Rule && g.Severity == f.Severity && g.Why == f.Why && g.Remedy == f.Remedy && g.Allowed == f.Allowed
}

func (g *findingGroup) add(f audit.Finding) {
	if len(g.More)+1 >= maxSame {
		g.Left++
		return
	}
	g.More = append(g.More, bounded(f))
}

func bounded(f audit.Finding) audit.Finding {
	if more := len(f.Seen) - maxLines; more > 1 {
		f.Seen = append(slices.Clone(f.Seen[:maxLines]), fmt.Sprintf("… and %d more", more))
	}
	return f
}

// versions are those of what people ask for first.
func (r *Report) versions() []field {
	var fields []field
	add := func(name string, values []string) {
		slices.Sort(values)
		if values = slices.Compact(values); len(values) > 0 {
			fields = append(fields, field{name, strings.Join(values[:min(len(values), 4)], ", ")})
		}
	}
	var pythons, torches, toolkits []string
	for i := range r.Facts.Pythons {
		p := &r.Facts.Pythons[i]
		if p.Version != "" {
			pythons = append(pythons, p.Version)
		}
		for _, d := range p.Distributions {
			switch {
			case d.Name == "torch":
				torches = append(torches, d.Version)
			case strings.HasPrefix(d.Name, "nvidia-cuda-runtime"):
				toolkits = append(toolkits, d.Version)
			}
		}
	}
	for _, kv := range r.Facts.Config.Env {
		if v, ok := strings.CutPrefix(kv, "CUDA_VERSION="); ok && v != "" {
			toolkits = append(toolkits, v)
		}
	}
	add("Python", pythons)
	add("PyTorch", torches)
	add("CUDA", toolkits)
	return fields
}
