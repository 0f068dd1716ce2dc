package recipe

// variantKeys are those of the images that one recipe makes, and a team's of several recipes.
var variantKeys = map[string]key{
	"variant": {
		Doc:      "Variants of the recipe by name: what each has in place of the recipe's own keys, or besides them.",
		NameForm: formVariant, NameFormName: "letters and digits, with dots, underscores or dashes between them",
	},
	"variant.NAME": {Doc: "A variant: any keys of the recipe but `name`, `variant` and `matrix`."},
	"matrix": {
		Doc: "Variants as a product: lists of names under `[variant]`, each list an axis. Every combination is a variant, named by its words with dashes between. " +
			"`exclude` lists combinations that are not wanted.",
		Example: `{ cuda = ["cu128", "cu130"], arch = ["amd64", "arm64"], exclude = ["cu128-arm64"] }`,
		Form:    formVariant, FormName: "names of variants",
		NameForm: formVariant, NameFormName: "that of an axis, or \"exclude\"",
	},

	"pipeline": {Doc: "The images of a team."},
	"pipeline.recipes": {
		Doc:     "The recipes: patterns of directories with a `sconce.toml`, or of files, relative to this file's directory. Each variant of each is an image. A path that begins with `-`, or has a colon, is refused; and so are jobs whose command would have `${{` in it.",
		Example: `["images/*", "apps/*"]`, Form: formImage, FormName: "patterns of paths",
	},
	"pipeline.staging": {
		Doc: "Where images are kept while they are built and tested: below it, each image has a repository of its name.", Example: `"registry.example.org/team/ci"`,
		Form: formRepository, FormName: "a repository of a registry, HOST/PATH, without a tag",
	},
	"pipeline.stable": {
		Doc:     "Where users take images from: below each of these, each image has a repository of its name. A recipe's own `[publish] repository` goes before.",
		Example: `["registry.example.org/team/images"]`, Form: formRepository, FormName: "repositories of registries, HOST/PATH, without a tag",
	},
	"pipeline.mutable": {
		Doc: "Patterns of versions whose stable tags are written again. All others are written once.", Example: `["*-dev"]`,
		Form: formImage, FormName: "patterns of versions",
	},
	"pipeline.clusters": {
		Doc: "Clusters on which images are tested whose tests say nothing else.", Example: `["clariden"]`, Form: formImage, FormName: "names of clusters",
	},
	"pipeline.branch": {
		Doc: "The branch from which images are [promoted](promotion.md#from-which-branch). From others, that is refused.", Default: DefaultBranch, Example: `"main"`,
		Form: formImage, FormName: "the name of a branch",
	},
	"pipeline.sign": {
		Doc: "The private key, in PEM, that evidence is signed with: `env:VARIABLE` that holds it, or `file:PATH`. Without it nothing is signed.", Example: `"env:SCONCE_KEY"`,
		Form: formKey, FormName: `"env:" and the name of a variable, or "file:" and a path`,
	},
	"pipeline.trust": {
		Doc: "Keys besides `sign` whose signatures count: those that the pipeline had before, and those of others who test its images. See [a new key, a lost key, a stolen key](guide/promotion.md#a-new-key-a-lost-key-a-stolen-key).",
	},
	"pipeline.trust.key": {
		Doc: "The public key, in PEM: its file, relative to this file's directory, `env:VARIABLE`, or the text itself.", Example: `"keys/team-2025.pub"`, Form: formAny, FormName: "a key", Lines: true,
	},
	"pipeline.trust.since": {
		Doc: "A day or a time (RFC 3339): verdicts of tests that ended before do not count.", Example: `"2025-01-01"`, Form: formImage, FormName: "a date",
	},
	"pipeline.trust.until": {
		Doc: "The same of those that ended later; a day counts to its end, in UTC.", Example: `"2026-11-30"`, Form: formImage, FormName: "a date",
	},
	"pipeline.trust.revoked": {
		Doc: "Nothing counts that the key has ever signed: it was stolen. Who holds a key can write any date, so `until` is no remedy for that.", Example: `true`,
	},
	"pipeline.trust.comment": {Doc: "For people.", Example: `"of the old CI"`, Form: formImage, FormName: "a text in one line"},
	"pipeline.untested": {
		Doc:     "Whether images are [published](promotion.md#images-without-tests) that have no `[[test]]`, or one that is left out by `skip`. A recipe's own `[publish] untested` goes before.",
		Default: "refuse", Example: `"allow"`, Enum: []string{Allow, "refuse"},
	},
	"pipeline.keep": {Doc: "What stays in `staging` when it is cleaned up."},
	"pipeline.keep.canonical": {
		Doc: "How long images stay that nothing refers to any more.", Default: "for ever", Example: `"30d"`, Form: formDays, FormName: `a number of days or hours, such as "30d"`,
	},
	"pipeline.keep.newest": {Doc: "How many of the newest images of each variant stay in any case.", Default: "0", Example: "3", Max: 1000},
	"pipeline.ci":          {Doc: "What jobs look like at a site."},
	"pipeline.ci.gitlab":   {Doc: "Parts of GitLab's jobs, copied as they are: their keys are GitLab's."},
	"pipeline.ci.gitlab.include": {
		Doc: "Files with the site's own job templates.", Example: `[{ remote = "https://ci.example.org/runners.yml" }]`,
	},
	"pipeline.ci.gitlab.default":   {Doc: "GitLab's `default` of all jobs.", Example: `{ interruptible = true }`},
	"pipeline.ci.gitlab.variables": {Doc: "Variables of all jobs.", Example: `{ SCONCE_STORE = "/dev/shm/sconce" }`},
	"pipeline.ci.gitlab.build":     {Doc: "What is added to jobs that build.", Example: `{ extends = ".builder" }`},
	"pipeline.ci.gitlab.test":      {Doc: "By cluster, what is added to jobs that test on it.", Example: `{ clariden = { extends = ".baremetal-runner" } }`},
	"pipeline.ci.gitlab.light":     {Doc: "What is added to jobs that only talk to registries.", Example: `{ extends = ".lightweight" }`},
	"pipeline.ci.github":           {Doc: "Parts of jobs of GitHub's actions, copied as they are: their keys are GitHub's."},
	"pipeline.ci.github.build":     {Doc: "What is added to jobs that build.", Example: `{ runs-on = ["self-hosted", "gh200"] }`},
	"pipeline.ci.github.test":      {Doc: "By cluster, what is added to jobs that test on it.", Example: `{ clariden = { runs-on = ["self-hosted", "login"] } }`},
	"pipeline.ci.github.light":     {Doc: "What is added to jobs that only talk to registries.", Example: `{ runs-on = "ubuntu-24.04" }`},
}
