package audit

// fileRules are about ....
var fileRules = []Rule{}
