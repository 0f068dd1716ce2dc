package recipe

// publishKeys are those of where images and what steps made go.
var publishKeys = map[string]key{
	"cache": {Doc: "Where what the build made is kept for other machines."},
	"cache.registry": {
		Doc:     "A repository, without a tag, in which layers of steps and compiled wheels are kept. A build reads it where whoever builds lets it: with `sconce build --read-cache`, or `read` under `[cache]` in [config.toml](guide/store.md#configuration).",
		Example: `"registry.example.org/team/cache"`,
		Form:    formRepository, FormName: `a registry and a path, such as "registry.example.org/team/cache", without a tag`,
	},
	"cache.push": {
		Doc: "Whether new ones are sent there, where whoever builds lets them: with `sconce build --push-cache`, or `push` under `[cache]` in [config.toml](guide/store.md#configuration), which read it as well. `false` only reads.", Default: "true", Example: `false`,
	},

	"publish": {Doc: "Where the image goes."},
	"publish.repository": {
		Doc: "The repository that `sconce build --push` and `sconce push` send it to, without a tag.", Example: `"registry.example.org/team/llm-train"`,
		Form: formRepository, FormName: `a registry and a path, such as "registry.example.org/team/llm-train", without a tag`,
	},

	"publish.index": {
		Doc: "In a [pipeline](guide/pipeline.md#one-image-for-several-platforms), this variant, whose name ends in the architecture of its platform, is published as one " +
			"image with those of the same name for others: `small-amd64` and `small-arm64` as `small`.",
		Default: "false", Example: "true",
	},
	"publish.untested": {
		Doc: "In a [pipeline](guide/promotion.md#images-without-tests), whether this image is published without a `[[test]]`, or with one that is left out by `skip`. It goes before " +
			"`untested` of pipeline.toml.",
		Example: `"allow"`, Enum: []string{Allow, "refuse"},
	},
}
