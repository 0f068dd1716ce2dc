package audit

// networkRules are about ....
var networkRules = []Rule{}
