package audit

// pythonRules are about ....
var pythonRules = []Rule{}
