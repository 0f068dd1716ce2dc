package image

// Labels of an image's configuration by which sconce knows again what it has done to an image.
const (
	// LabelSlim holds the compute capabilities that an image's device code was slimmed to, such as "9.0" or "8.0 9.0".
	LabelSlim = "dev.sconce.slim"
	// LabelUnchecked is "true" when the image was built with --no-check.
	LabelUnchecked = "dev.sconce.unchecked"
	// LabelStart is the absolute path of a program that has to become what a container runs, as an entrypoint; with ".sh" behind it, of a
	// file for scripts to source in its place.
	LabelStart = "dev.sconce.start"
)
