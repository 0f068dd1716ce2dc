package bootstrap

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sconce.dev/sconce/internal/debian"
)

// writeDatabase writes what dpkg knows of packages that are unpacked and not configured (dpkg(1), "Package states"), into
// dir, which becomes /var/lib/dpkg.
func writeDatabase(dir, architecture string, packages []*unpacked) error {
	var status bytes.Buffer
	interests := map[string][]string{} // who wants to hear of a trigger (deb-triggers(5)), by its name
	for _, u := range packages {
		if err := u.writeInfo(filepath.Join(dir, "info")); err != nil {
			return err
		}
		fmt.Fprintf(&status, "%s\n", u.status())
		if err := u.interests(interests); err != nil {
			return err
		}
	}
	files := map[string]string{
		"status": status.String(), "arch": architecture + "\n", "info/format": "1\n", "triggers/Unincorp": "", "triggers/File": "",
	}
	for _, name := range sortedKeys(interests) {
		if strings.HasPrefix(name, "/") {
			for _, who := range interests[name] {
				files["triggers/File"] += name + " " + who + "\n"
			}
			continue
		}
		files[filepath.Join("triggers", name)] = strings.Join(interests[name], "\n") + "\n"
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := writeFile(path, []byte(text), 0o644, time.Time{}); err != nil {
			return err
		}
	}
	return nil
}

func sortedKeys(m map[string][]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// writeFile writes a file with its permissions, whatever the umask is, and a time unless that is zero.
func writeFile(path string, content []byte, mode os.FileMode, modTime time.Time) error {
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return err
	}
	if err := os.Chmod(path, mode); err != nil {
		return err
	}
	if modTime.IsZero() {
		return nil
	}
	return os.Chtimes(path, modTime, modTime)
}

// writeInfo writes the package's control files and the list of its files.
func (u *unpacked) writeInfo(dir string) error {
	for _, f := range u.control {
		if f.name == "control" { // which is in the status
			continue
		}
		if err := writeFile(filepath.Join(dir, u.name()+"."+f.name), f.content, f.mode, f.modTime); err != nil {
			return err
		}
	}
	list := strings.Join(u.files, "\n") + "\n"
	return writeFile(filepath.Join(dir, u.name()+".list"), []byte(list), 0o644, time.Time{})
}

// writeScripts writes all control files as they lie before a package is unpacked: there its preinst runs, and debconf looks whose
// that is.
func (u *unpacked) writeScripts(dir string) error {
	if err := makeDir(dir, 0o755); err != nil {
		return err
	}
	for _, f := range u.control {
		if err := writeFile(filepath.Join(dir, f.name), f.content, f.mode, f.modTime); err != nil {
			return err
		}
	}
	return nil
}

// status is the package's paragraph: its control fields, and that its files are there with the configuration files in place.
func (u *unpacked) status() debian.Paragraph {
	p := slices.Clone(u.fields)
	p = append(p, debian.Field{Name: "Status", Value: "install ok unpacked"})
	if len(u.conffiles) == 0 {
		return p
	}
	var files strings.Builder
	for _, c := range u.conffiles {
		fmt.Fprintf(&files, "\n %s %s", c.path, c.md5)
	}
	return append(p, debian.Field{Name: "Conffiles", Value: files.String()})
}

// interests adds the triggers that the package wants to hear of.
func (u *unpacked) interests(all map[string][]string) error {
	for line := range strings.Lines(string(u.has("triggers"))) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) != 2 || !strings.HasPrefix(words[0], "interest") {
			continue // it activates one, which dpkg sees to
		}
		if name := words[1]; !strings.HasPrefix(name, "/") && !debian.IsName(name) {
			return fmt.Errorf("package %s has a trigger %.80q", u.Name, name)
		}
		who := u.name()
		if words[0] == "interest-noawait" {
			who += "/noawait"
		}
		all[words[1]] = append(all[words[1]], who)
	}
	return nil
}
