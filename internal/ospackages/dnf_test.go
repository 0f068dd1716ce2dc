package ospackages

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sconce.dev/sconce/internal/execop"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/mirrortest"
	"sconce.dev/sconce/internal/rpm/rpmtest"
)

// rpms are tiny packages, as the heads of their specs: names, versions and what they say of each other.
var rpms = []string{
	"Name: old\nVersion: 1",
	"Name: new\nVersion: 1\nObsoletes: old\nRequires: part >= 2",
	"Name: part\nVersion: 1",
	"Name: part\nVersion: 2\nEpoch: 3\nRecommends: never",
	"Name: never\nVersion: 1",
}

const rpmScript = `set -e
mkdir -p /repo /tmp/specs /etc/yum.repos.d
n=0
for head; do
	n=$((n+1))
	printf '%s\nRelease: 1\nSummary: test\nLicense: none\nBuildArch: noarch\n%%description\n%%files\n' "$head" > /tmp/specs/$n.spec
	rpmbuild -bb -D '_rpmdir /repo' -D '_topdir /tmp/top' -D '_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' /tmp/specs/$n.spec
done
createrepo_c /repo
printf '[test]\nname=test\nbaseurl=file:///repo\ngpgcheck=0\n' > /etc/yum.repos.d/test.repo
rm -rf /tmp/specs /tmp/top
`

// standInTar makes a Debian with its packages of rpm, dnf and zypper, once: there is no Fedora and no SUSE without a registry. The
// database of its rpm begins empty. It is the newer Debian, as its rpm shields scripts by means that the sandbox does not have.
var standInTar = sync.OnceValues(func() (string, error) {
	if err := makeSharedDir(); err != nil {
		return "", err
	}
	name := filepath.Join(sharedDir, "rpm.tar")
	out, err := mirrortest.Run(func() *exec.Cmd {
		return exec.Command("mmdebstrap", "--variant=apt", "--include=dnf,zypper,rpm,createrepo-c", "trixie", name)
	})
	if err != nil {
		return "", fmt.Errorf("mmdebstrap: %w\n%s", err, out)
	}
	return name, nil
})

// standIn is a store with that Debian in it.
func standIn(t *testing.T) *world {
	t.Helper()
	return bootstrapped(t, standInTar)
}

// fedoraStandIn makes a base with dnf and a repository.
func fedoraStandIn(t *testing.T) *world {
	t.Helper()
	w := standIn(t)
	repository, err := (&execop.Runner{Store: w.st}).Run(t.Context(), "make a repository", w.on, execop.Command{
		Args: slices.Concat([]string{"/bin/sh", "-c", "rm /usr/bin/apt-get\n" + rpmScript, "sh"}, rpms), NoNetwork: true,
	})
	if err != nil {
		t.Fatal(err, tail(err))
	}
	return &world{w.st, append(w.on, repository)}
}

func tail(err error) string {
	if f := (*execop.Failure)(nil); errors.As(err, &f) {
		return strings.Join(f.Tail, "\n")
	}
	return ""
}

func TestDnfOnAStandInForFedora(t *testing.T) {
	w := fedoraStandIn(t)
	first, err := w.resolve(t.Context(), "old", "part-1")
	if err != nil {
		t.Fatal(err, fault.HintOf(err))
	}
	if first.Manager != "dnf" || !cmp.Equal(first.names(), []string{"old 1-1", "part 1-1"}) || first.Packages[0].URL != "file:///repo/old-1-1.noarch.rpm" {
		t.Fatalf("%+v", first)
	}
	d, err := w.install(t.Context(), first)
	if err != nil {
		t.Fatal(err, tail(err))
	}
	under := &world{w.st, append(slices.Clone(w.on), d)}
	p, err := under.resolve(t.Context(), "new")
	if err != nil {
		t.Fatal(err, fault.HintOf(err))
	}
	if !cmp.Equal(p.names(), []string{"new 1-1", "part 3:2-1"}) {
		t.Fatalf("%+v", p)
	}
	if d, err = under.install(t.Context(), p); err != nil {
		t.Fatal(err, tail(err))
	}
	after := &world{w.st, append(slices.Clone(under.on), d)}
	checkRPMs(t, after)
	if p, err = after.resolve(t.Context(), "new"); err != nil || !p.Empty() {
		t.Errorf("what is there already is installed again: %+v, %v", p, err)
	}
	_, err = w.resolve(t.Context(), "nwe", "part")
	if err == nil || !strings.Contains(err.Error(), "nwe") || !strings.Contains(fault.HintOf(err), `did you mean "new"?`) {
		t.Errorf("%v\nhint: %s", err, fault.HintOf(err))
	}
	for _, bad := range []string{"@group", "-y", "/usr/bin/x", "lib*", "a b", ""} {
		if _, err := w.resolve(t.Context(), bad); fault.CodeOf(err) != fault.CodeUsage {
			t.Errorf("%q: %v", bad, err)
		}
	}
	first.Packages[0].Version = "9-1"
	if _, err := Layer(t.Context(), Install{Runner: &execop.Runner{Store: w.st}, Fetch: fetch.New(w.st, fetch.Options{}), On: w.on, Packages: first}); err == nil {
		t.Error("a package that is not what the lock says is installed")
	}
}

// What bootstrap writes of a repository is what dnf checks: a signed index, or signed packages.
func TestDnfChecksSignatures(t *testing.T) {
	w := standIn(t)
	repo, signer := t.TempDir(), rpmtest.NewSigner(t)
	rpmtest.Build(t, filepath.Join(repo, "noarch"), rpmtest.Package{Name: "old", Head: "BuildArch: noarch"})
	server := httptest.NewServer(http.FileServer(http.Dir(repo)))
	defer server.Close()
	key, err := os.ReadFile(signer.File)
	if err != nil {
		t.Fatal(err)
	}
	as := func(lines string) *world {
		text := "[test]\nname=test\nbaseurl=" + server.URL + "\nenabled=1\n" + lines + namesKey + "\n"
		return w.changed(t, "rm -f /usr/bin/apt-get", execop.File{Target: "/etc/yum.repos.d/test.repo", Content: []byte(text)}, execop.File{Target: "/" + publicKey, Content: key})
	}
	index, packages := as("gpgcheck=0\nrepo_gpgcheck=1\n"), as("gpgcheck=1\nrepo_gpgcheck=0\n")
	judge := func(what string, w *world, good bool) {
		t.Helper()
		if p, err := w.resolve(t.Context(), "old"); (err == nil) != good || good && len(p.Packages) != 1 {
			t.Errorf("%s: %+v, %v", what, p, err)
		}
	}
	unsignedIndex(t, repo)
	judge("an index that is to be signed", index, false)
	judge("packages that are to be signed", packages, false)
	signer.SignIndex(t, repo)
	judge("a signed index", index, true)
	judge("packages that are to be signed, with a signed index", packages, false)
	signer.SignPackages(t, filepath.Join(repo, "noarch"))
	unsignedIndex(t, repo)
	judge("an index that is to be signed, with signed packages", index, false)
	judge("signed packages", packages, true)
}

// checkRPMs asks the image itself.
func checkRPMs(t *testing.T, w *world) {
	t.Helper()
	const want = "new 1-1\npart 3:2-1\n"
	c := execop.Command{Args: []string{"/bin/sh", "-c", fmt.Sprintf(`test "$(rpm -qa --qf '%%{NAME} %%{EVR}\n' | sort)" = "$(printf '%s')"`, strings.ReplaceAll(want, "\n", `\n`))}}
	if _, err := (&execop.Runner{Store: w.st}).Run(t.Context(), "ask rpm", w.on, c); err != nil {
		t.Error(err, tail(err))
	}
}
