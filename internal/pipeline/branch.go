package pipeline

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/progress"
)

// branchVariables hold the branch that a CI system has checked out, most often without a branch of the repository's: GitLab's, GitHub's.
var branchVariables = []string{"CI_COMMIT_BRANCH", "GITHUB_REF_NAME"}

// currentBranch is the branch that the pipeline's directory is at; "" for a commit without one. known is false where there is no
// repository.
func (p *Pipeline) currentBranch() (branch string, known bool) {
	for _, name := range branchVariables {
		if b := os.Getenv(name); b != "" {
			return b, true
		}
	}
	for dir := p.Dir; ; dir = filepath.Dir(dir) {
		git := filepath.Join(dir, ".git")
		if _, err := os.Lstat(git); err == nil {
			return headOf(git), true
		}
		if dir == filepath.Dir(dir) {
			return "", false
		}
	}
}

// headOf reads the branch of a repository (gitrepository-layout(5), "HEAD"), of which a work tree has a file that leads to it.
func headOf(git string) string {
	if data, err := os.ReadFile(git); err == nil {
		to, ok := strings.CutPrefix(strings.TrimSpace(string(data)), "gitdir: ")
		if !ok {
			return ""
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(git), to)
		}
		git = to
	}
	data, err := os.ReadFile(filepath.Join(git, "HEAD"))
	if err != nil {
		return ""
	}
	branch, _ := strings.CutPrefix(strings.TrimSpace(string(data)), "ref: refs/heads/")
	if branch == strings.TrimSpace(string(data)) {
		return "" // a commit
	}
	return branch
}

// onlyTell reports whether it is only told what would be done, as the branch is not the one that images are promoted from; not says what
// is not done.
func (p *Pipeline) onlyTell(ctx context.Context, not string) bool {
	branch, known := p.currentBranch()
	if !known || branch == p.Branch {
		return false
	}
	if branch == "" {
		branch = "a commit that is on no branch"
	}
	progress.Warn(ctx, fmt.Sprintf("%s: this is %s, and images are promoted from %s", not, branch, p.Branch),
		"branch in "+p.Path+" names another one")
	return true
}
