package bootstrap

// HasMirror reports whether this machine knows where the packages of a suite are without being told by a recipe.
func HasMirror(suite string) bool {
	v, err := vendorOf(suite)
	if err != nil {
		return false
	}
	_, _, err = v.mirrors()
	return err == nil
}
