package pipeline

// SystemVariables are the variables by which CI systems are known.
func SystemVariables() []string {
	all := make([]string, len(systems))
	for i := range systems {
		all[i] = systems[i].variable
	}
	return append(all, others...)
}
