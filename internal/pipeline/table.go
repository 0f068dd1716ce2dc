package pipeline

import (
	"strings"

	"sconce.dev/sconce/internal/recipe"
)

const recipeFile = recipe.PipelineFile

// inCell keeps a text within its cell, and from being read as anything else: a link, an image, a tag.
var inCell = strings.NewReplacer("\\", "\\\\", "|", "\\|", "<", "&lt;", ">", "&gt;", "&", "&amp;", "]", "\\]", "://", "&#58;//", "www.", "www&#46;")

// TakeAs is by which references users take an image, or why they do not any more; "" when it is not published.
func (st *Status) TakeAs() string {
	switch {
	case len(st.Stable) == 0:
		return ""
	case st.Action == Withdrawn:
		return strings.Join(st.Reasons, "; ")
	case st.Action == Fine:
		return strings.Join(st.Stable, " ")
	}
	return ""
}

// Markdown writes what users can take as a table for a page of documentation: the stable references of images that are published.
func Markdown(all []*Status) string {
	var b strings.Builder
	b.WriteString("| image | version | take it as | platform | digest |\n|---|---|---|---|---|\n")
	for _, st := range all {
		take := st.TakeAs()
		if take == "" {
			continue
		}
		if st.Action == Fine {
			take = "`" + strings.Join(st.Stable, "` `") + "`"
		}
		cells := []string{st.Name, st.Version, inCell.Replace(take), strings.Join(st.Platforms(), " "), "`" + string(st.Digest) + "`"}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	return b.String()
}
