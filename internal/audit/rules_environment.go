package audit

// environmentRules are about ....
var environmentRules = []Rule{}
