package pipeline

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/recipe"
)

// Images are promoted from one branch, whatever names tags and other branches have.
func TestBranch(t *testing.T) {
	put := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range SystemVariables() {
		t.Setenv(name, "")
	}
	top := t.TempDir()
	p := &Pipeline{Pipeline: &recipe.Pipeline{Branch: "main"}}
	p.Dir = filepath.Join(top, "images")
	put(filepath.Join(p.Dir, "x"), "")
	want := func(what, refused string) {
		t.Helper()
		err := p.CheckBranch("promote x")
		if (err == nil) != (refused == "") || err != nil && (!strings.Contains(err.Error(), refused) || fault.CodeOf(err) != fault.CodeProblem) {
			t.Errorf("%s: %v, want %q", what, err, refused)
		}
	}
	if _, err := os.Lstat("/.git"); err != nil {
		want("without a repository", "without a repository")
	}
	put(filepath.Join(top, ".git/HEAD"), "ref: refs/heads/main\n")
	want("on main", "")
	p.At = "other"
	want("on main, by a person's word on another branch", "branch other")
	p.At = ""
	put(filepath.Join(top, ".git/HEAD"), "ref: refs/heads/feature/main\n")
	want("on another branch", "branch feature/main")
	put(filepath.Join(top, ".git/HEAD"), "0123456789abcdef0123456789abcdef01234567\n")
	want("at a commit", "on no branch")
	p.At = "main"
	want("at a commit, by a person's word on main", "")
	p.At = ""
	put(filepath.Join(top, "git/worktrees/w/HEAD"), "ref: refs/heads/main\n")
	put(filepath.Join(p.Dir, ".git"), "gitdir: ../git/worktrees/w\n")
	want("in a work tree", "")
	put(filepath.Join(p.Dir, ".git"), "nonsense")
	want("in a damaged one", "on no branch")
}

// What a job of a CI system is for is decided by what nobody chooses who names a branch or a tag, or asks for a merge.
func TestBranchInCI(t *testing.T) {
	top := t.TempDir()
	if err := os.MkdirAll(filepath.Join(top, ".git"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(top, ".git/HEAD"), []byte("ref: refs/heads/main\n"), 0o644); err != nil { // which decides nothing in CI
		t.Fatal(err)
	}
	p := &Pipeline{Pipeline: &recipe.Pipeline{Branch: "main", Dir: top}}
	for _, test := range []struct {
		name      string
		refused   string // "": it may publish
		variables string
	}{
		{"GitHub, a push", "", "GITHUB_ACTIONS=true GITHUB_EVENT_NAME=push GITHUB_REF=refs/heads/main GITHUB_REF_NAME=main"},
		{"GitHub, by hand", "", "GITHUB_ACTIONS=true GITHUB_EVENT_NAME=workflow_dispatch GITHUB_REF=refs/heads/main"},
		{"GitHub, a tag called main", "GITHUB_REF=refs/tags/main", "GITHUB_ACTIONS=true GITHUB_EVENT_NAME=push GITHUB_REF=refs/tags/main GITHUB_REF_NAME=main GITHUB_REF_TYPE=tag"},
		{"GitHub, another branch", "branch refs/heads/main", "GITHUB_ACTIONS=true GITHUB_EVENT_NAME=push GITHUB_REF=refs/heads/refs/heads/main"},
		{"GitHub, a fork", "GITHUB_EVENT_NAME=pull_request_target", "GITHUB_ACTIONS=true GITHUB_EVENT_NAME=pull_request_target GITHUB_REF=refs/heads/main GITHUB_REF_NAME=main"},
		{"GitHub, a request", "GITHUB_EVENT_NAME=pull_request", "GITHUB_ACTIONS=true GITHUB_EVENT_NAME=pull_request GITHUB_REF=refs/pull/1/merge GITHUB_BASE_REF=main"},
		{"GitHub, after a fork's run", "GITHUB_EVENT_NAME=workflow_run", "GITHUB_ACTIONS=true GITHUB_EVENT_NAME=workflow_run GITHUB_REF=refs/heads/main"},
		{"GitHub, no reference", "GITHUB_REF=", "GITHUB_ACTIONS=true GITHUB_EVENT_NAME=push GITHUB_REF_NAME=main"},
		{"GitLab", "", "GITLAB_CI=true CI_COMMIT_BRANCH=main CI_COMMIT_REF_NAME=main CI_COMMIT_REF_PROTECTED=true"},
		{"GitLab, not protected", "CI_COMMIT_REF_PROTECTED=false", "GITLAB_CI=true CI_COMMIT_BRANCH=main CI_COMMIT_REF_PROTECTED=false"},
		{"GitLab, a tag called main", "CI_COMMIT_TAG=main", "GITLAB_CI=true CI_COMMIT_TAG=main CI_COMMIT_REF_NAME=main CI_COMMIT_REF_PROTECTED=true"},
		{"GitLab, a request", "CI_MERGE_REQUEST_IID=7", "GITLAB_CI=true CI_MERGE_REQUEST_IID=7 CI_COMMIT_REF_NAME=main CI_COMMIT_BRANCH=main CI_COMMIT_REF_PROTECTED=true"},
		{"GitLab, a request of another server", "CI_EXTERNAL_PULL_REQUEST_IID=7", "GITLAB_CI=true CI_EXTERNAL_PULL_REQUEST_IID=7 CI_COMMIT_BRANCH=main CI_COMMIT_REF_PROTECTED=true"},
		{"Woodpecker", "", "CI=woodpecker CI_PIPELINE_EVENT=push CI_COMMIT_REF=refs/heads/main CI_COMMIT_BRANCH=main"},
		{"Woodpecker, a request", "CI_PIPELINE_EVENT=pull_request", "CI=woodpecker CI_PIPELINE_EVENT=pull_request CI_COMMIT_REF=refs/pull/1/head CI_COMMIT_BRANCH=main"},
		{"Jenkins", "", "JENKINS_URL=https://ci/ BRANCH_NAME=main"},
		{"Jenkins, a request", "CHANGE_ID=3", "JENKINS_URL=https://ci/ BRANCH_NAME=main CHANGE_ID=3"},
		{"Jenkins, a tag", "TAG_NAME=main", "JENKINS_URL=https://ci/ BRANCH_NAME=main TAG_NAME=main"},
		{"Jenkins, of no multibranch pipeline", "BRANCH_NAME=", "JENKINS_URL=https://ci/ GIT_BRANCH=origin/main"},
		{"Buildkite", "", "BUILDKITE=true BUILDKITE_BRANCH=main BUILDKITE_PULL_REQUEST=false"},
		{"Buildkite, a request", "BUILDKITE_PULL_REQUEST=7", "BUILDKITE=true BUILDKITE_BRANCH=main BUILDKITE_PULL_REQUEST=7"},
		{"Buildkite, a tag", "BUILDKITE_TAG=main", "BUILDKITE=true BUILDKITE_BRANCH=main BUILDKITE_PULL_REQUEST=false BUILDKITE_TAG=main"},
		{"CircleCI", "", "CIRCLECI=true CIRCLE_BRANCH=main"},
		{"CircleCI, a fork", "CIRCLE_PR_NUMBER=7", "CIRCLECI=true CIRCLE_BRANCH=main CIRCLE_PR_NUMBER=7"},
		{"Azure", "", "TF_BUILD=True BUILD_SOURCEBRANCH=refs/heads/main BUILD_SOURCEBRANCHNAME=main"},
		{"Azure, a tag", "BUILD_SOURCEBRANCH=refs/tags/main", "TF_BUILD=True BUILD_SOURCEBRANCH=refs/tags/main BUILD_SOURCEBRANCHNAME=main"},
		{"Azure, a request", "SYSTEM_PULLREQUEST_PULLREQUESTID=7", "TF_BUILD=True BUILD_SOURCEBRANCH=refs/heads/main SYSTEM_PULLREQUEST_PULLREQUESTID=7"},
		{"Bitbucket", "", "BITBUCKET_BUILD_NUMBER=1 BITBUCKET_BRANCH=main"},
		{"Bitbucket, a request", "BITBUCKET_PR_ID=7", "BITBUCKET_BUILD_NUMBER=1 BITBUCKET_BRANCH=main BITBUCKET_PR_ID=7"},
		{"Drone, which is not known", "not known, with CI=true", "CI=true DRONE=true DRONE_BRANCH=main"},
		{"Prow, which is not known", "not known, with PROW_JOB_ID=1", "PROW_JOB_ID=1"},
		{"two that agree", "", "JENKINS_URL=https://ci/ BRANCH_NAME=main GITHUB_ACTIONS=true GITHUB_EVENT_NAME=push GITHUB_REF=refs/heads/main"},
		{"two that do not", "branch main, and of Jenkins for branch x", "JENKINS_URL=https://ci/ BRANCH_NAME=x GITHUB_ACTIONS=true GITHUB_EVENT_NAME=push GITHUB_REF=refs/heads/main"},
		{"two, a request of one", "CHANGE_ID=3", "JENKINS_URL=https://ci/ BRANCH_NAME=main CHANGE_ID=3 GITHUB_ACTIONS=true GITHUB_EVENT_NAME=push GITHUB_REF=refs/heads/main"},
		{"outside of CI, as it says", "", "CI=false"},
		{"the names alone, outside of CI", "", "CI_COMMIT_BRANCH=other GITHUB_REF_NAME=other"}, // what is checked out counts
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, name := range SystemVariables() {
				t.Setenv(name, "")
			}
			for i := range systems {
				t.Setenv(systems[i].branch, "")
				for name := range systems[i].must {
					t.Setenv(name, "")
				}
			}
			for _, v := range strings.Fields(test.variables) {
				name, value, _ := strings.Cut(v, "=")
				t.Setenv(name, value)
			}
			err := p.CheckBranch("promote x")
			if (err == nil) != (test.refused == "") || err != nil && !strings.Contains(err.Error(), test.refused) {
				t.Errorf("%v, want %q", err, test.refused)
			}
		})
	}
}
