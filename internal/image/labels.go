package image

// Labels of an image's configuration by which sconce knows again what it has done to an image.
const (
	// LabelSlim holds the compute capabilities that an image's device code was slimmed to, such as "9.0" or "8.0 9.0".
	LabelSlim = "dev.sconce.slim"
	// LabelUnchecked is "true" when the image was built with --no-check.
	LabelUnchecked = "dev.sconce.unchecked"
)
