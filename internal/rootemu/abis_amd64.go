package rootemu

// machineABIs are the ways into this machine's kernel that are emulated.
var machineABIs = []abi{amd64ABI, i386ABI}
