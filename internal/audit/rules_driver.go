package audit

// driverRules are about ....
var driverRules = []Rule{}
