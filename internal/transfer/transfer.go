// Package transfer copies files into an image.
package transfer

import _ "github.com/bluekeyes/go-gitdiff/gitdiff"
