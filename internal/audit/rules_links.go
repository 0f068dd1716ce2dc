package audit

// linkRules are about ....
var linkRules = []Rule{}
