package pipeline

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sconce.dev/sconce/internal/fault"
)

// currentBranch is the branch that the pipeline's directory is at: what a person says, else the CI system, else what is checked out. "":
// it is at none, and why says what it is at.
func (p *Pipeline) currentBranch() (branch, why string) {
	if p.At != "" {
		return p.At, ""
	}
	if branch, why = branchInCI(); branch != "" || why != "" {
		return branch, why
	}
	for dir := p.Dir; ; dir = filepath.Dir(dir) {
		git := filepath.Join(dir, ".git")
		if _, err := os.Lstat(git); err == nil {
			if branch = headOf(git); branch == "" {
				why = "a commit that is on no branch"
			}
			return branch, why
		}
		if dir == filepath.Dir(dir) {
			return "", "a directory without a repository of git"
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

// CheckBranch refuses what is done from one branch alone, called what, unless this is that branch.
func (p *Pipeline) CheckBranch(what string) error {
	branch, why := p.currentBranch()
	switch branch {
	case p.Branch:
		return nil
	case "":
	default:
		why = "branch " + branch
	}
	err := fault.Problem(fmt.Errorf("%s: this is %s, and only branch %s may do that", what, why, p.Branch))
	if branch == "" {
		return fault.Hint(err, fmt.Sprintf("do it in a job for branch %[1]s; where nothing else says that this is %[1]s, --branch %[1]s does", p.Branch))
	}
	return fault.Hint(err, "do it from there; branch in "+p.Path+" says which it is")
}
