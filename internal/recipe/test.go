package recipe

import (
	"fmt"
	"maps"
	"slices"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/imagetest"
	"sconce.dev/sconce/internal/job"
)

// validateJobs refuses what a job would change on the host, see [cluster.CheckOption] and [cluster.CheckVariable].
func (c *checker) validateJobs(jobs map[string]job.Job) {
	for _, name := range slices.Sorted(maps.Keys(jobs)) {
		label := "job." + name
		for i, text := range jobs[name].Options {
			if err := cluster.CheckOption(text); err != nil {
				c.add(c.atItem(i, "job", name, "options"), fault.HintOf(err), "%s.options: %s", label, err)
			}
		}
		for _, variable := range slices.Sorted(maps.Keys(jobs[name].Env)) {
			if err := cluster.CheckVariable(variable); err != nil {
				c.add(c.at("job", name, "env", variable), fault.HintOf(err), "%s.env: %s", label, err)
			}
		}
	}
}

// validateTests finds the mistakes in tests that no single value shows.
func (c *checker) validateTests(tests []imagetest.Test) {
	list := c.find("test")
	if list == nil || len(list.items) != len(tests) {
		return
	}
	names := map[string]bool{}
	for i, item := range list.items {
		if item.table == nil {
			continue
		}
		t := tests[i]
		label := labelOf(root().fields["test"], i, item)
		c.validateTest(t, item, label)
		for j, f := range t.Files {
			if n := item.table.nodes["files"]; n != nil && j < len(n.items) {
				c.validateExists(f, label+": files", n.items[j].value)
			}
		}
		if name := t.Title(); name != "" && names[name] {
			c.add(item.key, fmt.Sprintf("add name = %q", name+"-2"), "%s: there is another test %q", label, name)
		} else {
			names[name] = true
		}
	}
}

func (c *checker) validateTest(t imagetest.Test, item *node, label string) {
	for _, p := range t.Problems() {
		at, key := item.key, ""
		if n := item.table.nodes[p.Key]; n != nil {
			at, key = n.value, p.Key+": "
			if p.Item >= 0 && p.Item < len(n.items) {
				at = n.items[p.Item].value
			}
			if p.Name != "" && n.table != nil && n.table.nodes[p.Name] != nil {
				at, key = n.table.nodes[p.Name].value, p.Key+"."+p.Name+": "
			}
		}
		if p.Key == "" && (item.table.misspells(root().fields["test"], "use") || item.table.misspells(root().fields["test"], "run")) {
			continue
		}
		c.add(at, fault.HintOf(p.Err), "%s: %s%s", label, key, p.Err)
	}
}
