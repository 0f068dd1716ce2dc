package pipeline

import (
	"strings"

	"sconce.dev/sconce/internal/recipe"
)

const recipeFile = recipe.PipelineFile

// Markdown writes what users can take as a table for a page of documentation: the stable references of images that are published.
func Markdown(all []*Status) string {
	var b strings.Builder
	b.WriteString("| image | version | take it as | platform | digest |\n|---|---|---|---|---|\n")
	for _, st := range all {
		if st.Action != Fine || len(st.Stable) == 0 {
			continue
		}
		refs := make([]string, len(st.Stable))
		for i, ref := range st.Stable {
			refs[i] = "`" + ref + "`"
		}
		cells := []string{st.Name, st.Version, strings.Join(refs, " "), strings.Join(st.Platforms(), " "), "`" + string(st.Digest) + "`"}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	return b.String()
}
