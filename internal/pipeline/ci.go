package pipeline

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// system is what the environment of a CI system's jobs says of them. Only what names of branches and tags cannot forge decides what a job
// is for: the kind of its reference, and the event that it runs for.
type system struct {
	name     string
	variable string // by which its jobs are known, of which the value is
	value    string // "": any

	branch string              // the variable with the branch
	ref    bool                // it holds the whole reference, refs/heads/NAME
	must   map[string][]string // what other variables are in a job of a branch; "" is one that is not set

	// Where the sources are from and what the job is, made of variables in braces; "" when one of them is not set.
	repository, commit, job string
}

// unset is the value of a variable that is not set.
var unset = []string{""}

// systems are the CI systems that are known, by the documentation of their variables. Any other one is told by --branch.
var systems = []system{
	{
		// Also Forgejo's and Gitea's. In a job of pull_request_target and the like, GITHUB_REF is a branch, and the sources are often a stranger's.
		name: "GitHub", variable: "GITHUB_ACTIONS", value: "true", branch: "GITHUB_REF", ref: true,
		must:       map[string][]string{"GITHUB_EVENT_NAME": {"push", "schedule", "workflow_dispatch", "repository_dispatch"}},
		repository: "${GITHUB_SERVER_URL}/${GITHUB_REPOSITORY}", commit: "${GITHUB_SHA}",
		job: "${GITHUB_SERVER_URL}/${GITHUB_REPOSITORY}/actions/runs/${GITHUB_RUN_ID}",
	}, {
		// CI_COMMIT_BRANCH is there in pipelines of branches alone.
		name: "GitLab", variable: "GITLAB_CI", value: "true", branch: "CI_COMMIT_BRANCH",
		must: map[string][]string{
			"CI_COMMIT_TAG": unset, "CI_MERGE_REQUEST_IID": unset, "CI_EXTERNAL_PULL_REQUEST_IID": unset, "CI_COMMIT_REF_PROTECTED": {"true"},
		},
		repository: "${CI_PROJECT_URL}", commit: "${CI_COMMIT_SHA}", job: "${CI_JOB_URL}",
	}, {
		name: "Woodpecker", variable: "CI", value: "woodpecker", branch: "CI_COMMIT_REF", ref: true,
		must:       map[string][]string{"CI_PIPELINE_EVENT": {"push", "cron", "manual"}},
		repository: "${CI_REPO_URL}", commit: "${CI_COMMIT_SHA}", job: "${CI_PIPELINE_URL}",
	}, {
		// Those of multibranch pipelines; others do not say of what kind their reference is.
		name: "Jenkins", variable: "JENKINS_URL", branch: "BRANCH_NAME",
		must:       map[string][]string{"CHANGE_ID": unset, "TAG_NAME": unset},
		repository: "${GIT_URL}", commit: "${GIT_COMMIT}", job: "${BUILD_URL}",
	}, {
		name: "Buildkite", variable: "BUILDKITE", value: "true", branch: "BUILDKITE_BRANCH",
		must:       map[string][]string{"BUILDKITE_PULL_REQUEST": {"false"}, "BUILDKITE_TAG": unset},
		repository: "${BUILDKITE_REPO}", commit: "${BUILDKITE_COMMIT}", job: "${BUILDKITE_BUILD_URL}#${BUILDKITE_JOB_ID}",
	}, {
		name: "CircleCI", variable: "CIRCLECI", value: "true", branch: "CIRCLE_BRANCH",
		must:       map[string][]string{"CIRCLE_TAG": unset, "CIRCLE_PR_NUMBER": unset},
		repository: "${CIRCLE_REPOSITORY_URL}", commit: "${CIRCLE_SHA1}", job: "${CIRCLE_BUILD_URL}",
	}, {
		name: "Azure Pipelines", variable: "TF_BUILD", value: "True", branch: "BUILD_SOURCEBRANCH", ref: true,
		must:       map[string][]string{"SYSTEM_PULLREQUEST_PULLREQUESTID": unset},
		repository: "${BUILD_REPOSITORY_URI}", commit: "${BUILD_SOURCEVERSION}",
		job: "${SYSTEM_COLLECTIONURI}${SYSTEM_TEAMPROJECT}/_build/results?buildId=${BUILD_BUILDID}",
	}, {
		name: "Bitbucket", variable: "BITBUCKET_BUILD_NUMBER", branch: "BITBUCKET_BRANCH",
		must:       map[string][]string{"BITBUCKET_TAG": unset, "BITBUCKET_PR_ID": unset},
		repository: "${BITBUCKET_GIT_HTTP_ORIGIN}", commit: "${BITBUCKET_COMMIT}",
		job: "${BITBUCKET_GIT_HTTP_ORIGIN}/pipelines/results/${BITBUCKET_BUILD_NUMBER}",
	},
}

// currentSystems are the CI systems that this process is a job of, by its environment: of more than one where somebody has set what another sets.
func currentSystems() []*system {
	var all []*system
	for i := range systems {
		if s := &systems[i]; os.Getenv(s.variable) != "" && os.Getenv(s.variable) == cmp.Or(s.value, os.Getenv(s.variable)) {
			all = append(all, s)
		}
	}
	return all
}

// others are variables that jobs of other CI systems have. Such a job may have merged what somebody proposes into a branch of any name.
var others = []string{
	"CI", "CONTINUOUS_INTEGRATION", "APPVEYOR", "CODEBUILD_BUILD_ID", "DRONE", "PROW_JOB_ID", "SEMAPHORE", "TEAMCITY_VERSION", "TRAVIS", "ZUUL", "bamboo_buildKey",
}

// branchInCI is the branch that a job of CI systems is for; why says what else it is for. Both are "" outside of a job.
func branchInCI() (branch, why string) {
	found := currentSystems()
	for n, s := range found {
		at, not := s.checkedOut()
		switch {
		case not != "":
			return "", not
		case n > 0 && at != branch:
			return "", fmt.Sprintf("a job of %s for branch %s, and of %s for branch %s", found[0].name, branch, s.name, at)
		}
		branch = at
	}
	if len(found) > 0 {
		return branch, ""
	}
	for _, name := range others {
		if v := os.Getenv(name); v != "" && v != "false" && v != "0" {
			return "", fmt.Sprintf("a job of a CI system that is not known, with %s=%s", name, v)
		}
	}
	return "", ""
}

// checkedOut is the branch that the job is for. Of one that is for none, why says what it is.
func (s *system) checkedOut() (branch, why string) {
	for _, name := range slices.Sorted(maps.Keys(s.must)) {
		if v := os.Getenv(name); !slices.Contains(s.must[name], v) {
			return "", fmt.Sprintf("a job of %s with %s=%s", s.name, name, v)
		}
	}
	value := os.Getenv(s.branch)
	if s.ref {
		value, _ = strings.CutPrefix(value, "refs/heads/")
		if value == os.Getenv(s.branch) {
			value = ""
		}
	}
	if value == "" {
		return "", fmt.Sprintf("a job of %s with %s=%s", s.name, s.branch, os.Getenv(s.branch))
	}
	return value, ""
}

// fill puts variables into a text; "" when one of them is not set.
func fill(text string) string {
	whole := true
	filled := os.Expand(text, func(name string) string {
		v := os.Getenv(name)
		whole = whole && v != ""
		return v
	})
	if !whole {
		return ""
	}
	return filled
}
