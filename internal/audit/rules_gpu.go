package audit

// gpuRules are about ....
var gpuRules = []Rule{}
