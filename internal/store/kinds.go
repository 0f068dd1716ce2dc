package store

// The kinds of records: what was made, under what. All of them are here, so that a person who finds one on disk can look it up,
// and docs/formats.md lists them.
const (
	KindImage       Kind = "image"             // an image under one of its names; prune never removes what it is based on
	KindImageStep   Kind = "image-step"        // the digest of an image that was built; under the key of its plan
	KindPlan        Kind = "plan"              // the steps of the last build of an image, to say what has changed since; under its name
	KindStep        Kind = "step"              // the layer of a step; under the step's key
	KindContent     Kind = "step-content"      // the layer of a step; under what it really stood on and took, for when that is made in another way
	KindBootstrap   Kind = "bootstrap"         // the image of a base made from a distribution's packages; under the base's key
	KindBaseAnswer  Kind = "base-answer"       // the packages that a base was resolved to, for an hour after a lock that has failed; under the request
	KindRepomd      Kind = "repomd"            // the newest date of a repository of RPM packages that was seen; under a hash of its address
	KindBase        Kind = "base"              // the image of a base that files were taken out of; under the base's key
	KindFileLayer   Kind = "file-layer"        // the layer that was made of a squashfs, a SIF or a tar file; under the state of the file
	KindSystem      Kind = "system"            // the layer of system packages; under the step's key
	KindWheelLayer  Kind = "wheel-layer"       // a layer of wheels and the digest of its manifest; under what decides it
	KindBytecode    Kind = "bytecode"          // the layer of wheels that has a package's last version with byte code; under package, place and Python
	KindCondaLayer  Kind = "conda-layer"       // a layer of conda packages and the digest of its manifest; under what decides it
	KindActivation  Kind = "conda-activation"  // the variables that scripts of conda packages set; under the step's key
	KindBuiltWheel  Kind = "built-wheel"       // a wheel that was compiled here; under what decides it
	KindRepository  Kind = "source-repository" // the packed files of a commit; under address and commit
	KindInterpreter Kind = "interpreter"       // the Python of an image; under the image's digest
	KindLayerIndex  Kind = "layer-index"       // the index of a layer; under the layer's digest
	KindSlimLook    Kind = "slim-look"         // what slimming changes in a layer; under layer, GPUs and options
	KindSlimLayer   Kind = "slim-layer"        // what takes a layer's place when it is slimmed; under layer, GPUs and options
	KindOrigin      Kind = "origin"            // the repositories of a registry that are known to have a blob; under the blob
	KindPacks       Kind = "squashfs-packs"    // compressed blocks that the next squashfs file of a layer takes over; under the layer
	KindAuditLayer  Kind = "audit-layer"       // what an audit has read of a layer; under its DiffID
	KindAuditFile   Kind = "audit-file"        // what an audit has read of a squashfs; under a hash of its tables
	KindAuditImage  Kind = "audit-image"       // what an audit has found in an image; under what the image is made of
	KindAuditPages  Kind = "audit-pages"       // parts of files that an audit looked at; under the layers
	KindCheck       Kind = "check-v1"          // the findings of a check; under image, target, rules and sconce's version
	KindSlimELF     Kind = "slim-elf"          // what stripping would do to the programs of a layer; under the layer
	KindHashed      Kind = "hashed"            // the state of another member's blob when it was hashed, in a store of a group; under the blob
	KindStart       Kind = "start"             // the files that commands read, in order; under the image and the commands
	KindVenvFile    Kind = "venv-file"         // that the user has named a file or a project for an environment; under both paths
	KindPlaced      Kind = "placed"            // the state of an image's file in a directory that jobs are submitted from; under its path
	KindPass        Kind = "verify-pass"       // how far a verification in slices has come
)
