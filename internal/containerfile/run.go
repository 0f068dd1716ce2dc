package containerfile

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"sconce.dev/sconce/internal/execop"
)

// run reads RUN.
func (s *stage) run(ctx context.Context, c *instructions.RunCommand, line int) (*Run, error) {
	if instructions.GetSecurity(c) == instructions.SecurityInsecure {
		return nil, wrongf("nothing here has more rights than the user who builds", "RUN --security=insecure is not supported")
	}
	if devices := instructions.GetDevices(c); len(devices) > 0 {
		return nil, wrongf("", "RUN --device=%s is not supported", devices[0].Name)
	}
	r := &Run{Command: execop.Command{
		Env:       s.env.environ(),
		WorkDir:   s.Config.WorkingDir,
		User:      s.Config.User,
		NoNetwork: instructions.GetNetwork(c) == instructions.NetworkNone,
	}}
	if instructions.GetNetwork(c) == instructions.NetworkHost {
		s.warn(line, "if the command needs what this machine offers to itself alone, build with --network host", "RUN --network=host has no effect by itself: who builds decides")
	}
	s.commandOf(c, r)
	if len(c.CmdLine) == 0 && len(c.Files) == 0 {
		s.warn(line, "", "RUN without a command does nothing")
		return nil, nil
	}
	for _, m := range instructions.GetMounts(c) {
		mount, err := s.mount(ctx, m, line)
		if err != nil {
			return nil, err
		}
		r.Mounts = append(r.Mounts, mount)
	}
	return r, nil
}

// documentDir is where a command finds a here-document that is a script of its own.
const documentDir = "/dev/pipes"

// commandOf sets the arguments of a RUN, with its here-documents.
func (s *stage) commandOf(c *instructions.RunCommand, r *Run) {
	if !c.PrependShell {
		r.Args = c.CmdLine
		return
	}
	script := strings.Join(c.CmdLine, " ")
	switch {
	case len(c.Files) == 0:
	case parser.MustParseHeredoc(script) == nil: // the shell reads them itself
		for _, f := range c.Files {
			script += "\n" + f.Data + f.Name
		}
	default: // nothing but one: it is the script
		script = c.Files[0].Data
		if c.Files[0].Chomp {
			script = parser.ChompHeredocContent(script)
		}
		if strings.HasPrefix(script, "#!") {
			target := path.Join(documentDir, path.Base(c.Files[0].Name))
			r.Files = []execop.File{{Target: target, Mode: 0o755, Content: []byte(script)}}
			script = target
		}
	}
	r.Args = s.withShell(script)
}

// labels are options of mounts that podman and buildah take, and that change nothing here: labels of SELinux, which a mount of the
// sandbox does not need, how mounts on it spread, what a mount forbids that no step can do anyway, and U, which see warnChown.
var labels = []string{
	"z", "Z", "relabel", "U", "chown", "shared", "rshared", "slave", "rslave", "private", "rprivate", "unbindable", "runbindable",
	"bind-propagation", "bind-nonrecursive", "nosuid", "nodev", "noexec",
}

// mountFlag starts the option of a RUN that mounts something.
const mountFlag = "--mount="

// withoutLabels returns the options of a RUN without these options of its mounts.
func withoutLabels(flags []string) []string {
	kept := slices.Clone(flags)
	for i, flag := range kept {
		fields, is := strings.CutPrefix(flag, mountFlag)
		if !is || strings.Contains(fields, `"`) { // quoted fields may hold commas
			continue
		}
		rest := slices.DeleteFunc(strings.Split(fields, ","), func(field string) bool {
			key, _, _ := strings.Cut(field, "=")
			return slices.Contains(labels, key)
		})
		kept[i] = mountFlag + strings.Join(rest, ",")
	}
	return kept
}

// warnChown warns of the option U of a mount, by which podman gives what is mounted to the step's user.
func (s *stage) warnChown(flags []string, line int) {
	if slices.Contains([]string{"", "root", "0"}, s.Config.User) {
		return
	}
	for _, flag := range flags {
		fields := strings.Split(strings.TrimPrefix(flag, mountFlag), ",")
		if strings.HasPrefix(flag, mountFlag) && (slices.Contains(fields, "U") || slices.Contains(fields, "U=true")) {
			s.warn(line, "a cache is given to a user by uid=NUMBER,gid=NUMBER", "the mount's option U is passed over: what is mounted keeps its owner")
		}
	}
}

// mount reads RUN --mount.
func (s *stage) mount(ctx context.Context, m *instructions.Mount, line int) (Mount, error) {
	mount := Mount{From: Source{Stage: -1}, Mount: execop.Mount{
		Kind: execop.Kind(m.Type), ID: m.CacheID, Sharing: execop.Sharing(m.CacheSharing), ReadOnly: m.ReadOnly, Size: m.SizeLimit, Required: m.Required,
	}}
	if m.Target != "" {
		mount.Target = s.absolute(m.Target)
	}
	if m.Mode != nil {
		mount.Mode = uint32(*m.Mode)
	}
	if m.UID != nil {
		mount.UID = int(*m.UID)
	}
	if m.GID != nil {
		mount.GID = int(*m.GID)
	}
	switch mount.Kind {
	case execop.Secret:
		secretMount(m, &mount)
		return mount, nil
	case execop.SSH:
		return mount, agentMount(m, &mount)
	}
	if mount.Target == "" {
		mount.Target = s.absolute("")
	}
	if mount.Target == "/" {
		return mount, wrongf("say where with target=", "a mount of type %s cannot be the root directory", m.Type)
	}
	return mount, s.filesMount(ctx, m, &mount, line)
}

// filesMount reads what is particular to a bind, a cache and a tmpfs.
func (s *stage) filesMount(ctx context.Context, m *instructions.Mount, mount *Mount, line int) error {
	if mount.Kind == execop.Tmpfs {
		if m.From != "" || m.Source != "" {
			return wrongf("", "a mount of type tmpfs begins empty: it has neither from nor source")
		}
		return nil
	}
	mount.Source = strings.TrimPrefix(path.Join("/", m.Source), "/")
	if mount.Kind == execop.Cache && mount.ID == "" {
		mount.ID = mount.Target
	}
	var err error
	switch {
	case m.From != "":
		mount.From, err = s.source(ctx, line, m.From)
	case mount.Kind == execop.Bind:
		mount.From = Source{Stage: -1, Context: true}
	case mount.Source != "":
		err = wrongf("", "a cache without from begins empty: it has no source")
	}
	return err
}

// secretMount finds the ID of a secret, which its source or its target may give, and where it is seen.
func secretMount(m *instructions.Mount, mount *Mount) {
	if m.Source != "" {
		mount.ID = m.Source
	}
	if mount.ID == "" {
		mount.ID = path.Base(m.Target)
	}
	if m.Env != nil {
		mount.Env = *m.Env
		if mount.Env == "" {
			mount.Env = mount.ID
		}
	}
	if mount.Target == "" && mount.Env == "" {
		mount.Target = "/run/secrets/" + path.Base(mount.ID)
	}
}

func agentMount(m *instructions.Mount, mount *Mount) error {
	if m.Source != "" || m.From != "" {
		return wrongf("id= says which agent", "a mount of type ssh has neither from nor source")
	}
	if mount.ID == "" {
		mount.ID = "default"
	}
	return nil
}

// text returns an instruction on one line, as a person would write it.
func text(n *parser.Node) string {
	keyword, rest, _ := strings.Cut(strings.TrimSpace(n.Original), " ")
	if i := strings.IndexAny(keyword, "\t"); i >= 0 {
		keyword, rest = keyword[:i], keyword[i+1:]+" "+rest
	}
	line := strings.TrimSpace(strings.ToUpper(keyword) + " " + squeeze(rest))
	if len(n.Heredocs) > 0 {
		if s := summary(n.Heredocs[0].Content); s != "" && strings.EqualFold(keyword, "run") {
			line += " (" + s + ")"
		}
	}
	return line
}

// squeeze makes one space of what stands between words, but not within quotes.
func squeeze(s string) string {
	var b strings.Builder
	var quote rune
	blank := false
	for _, c := range s {
		if quote == 0 && (c == ' ' || c == '\t') {
			blank = true
			continue
		}
		if blank && b.Len() > 0 {
			b.WriteByte(' ')
		}
		blank = false
		switch {
		case quote == c:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		}
		b.WriteRune(c)
	}
	return b.String()
}

// summaryLength is how much of a here-document stands in the history, in characters.
const summaryLength = 60

// summary returns the first line of a script that says what it does.
func summary(script string) string {
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") || slices.Contains([]string{"set -e", "set -x", "set -ex", "set -eux"}, line) {
			continue
		}
		if runes := []rune(line); len(runes) > summaryLength {
			return string(runes[:summaryLength]) + "…"
		}
		return line
	}
	return ""
}
