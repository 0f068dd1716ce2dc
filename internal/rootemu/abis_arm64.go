package rootemu

// machineABIs are the ways into this machine's kernel that are emulated. 32-bit Arm is left to the kernel: the machines
// that sconce builds on do not run it.
var machineABIs = []abi{arm64ABI}
