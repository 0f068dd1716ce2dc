package engine

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"

	"sconce.dev/sconce/internal/host"
)

// When the garbage collector starts to work harder, in bytes. What a command really holds is well below: buffers of known
// number and size, most of them for each core that works. Without a target the heap would be let grow to twice that. A
// target below what is held is worse than none, as the collector then never rests.
const (
	memoryBase    = 160 << 20 // with two cores
	memoryPerCore = 48 << 20  // for each core more
	memoryShare   = 4         // at most one part in as many of what there is
	workersShare  = 2         // what the cores used can hold is at most one part in as many of it
)

// memoryTarget says when that is on so many cores, of so many bytes that may be used.
func memoryTarget(cores int, available int64) int64 {
	wanted := int64(memoryBase + memoryPerCore*max(cores-2, 0))
	return max(memoryBase, min(wanted, available/memoryShare))
}

// coresFor says how many of the cores can be used where so many bytes may be: what works on a core holds buffers that the collector
// cannot take away, and a job with many cores and little memory would be killed for them.
func coresFor(cores int, available int64) int {
	return min(cores, int(max(0, available/workersShare-memoryBase)/memoryPerCore)+2)
}

// LimitMemory sets for this process how many cores it uses and from how much memory on it collects garbage, unless the user has.
func LimitMemory() {
	cores, available := runtime.GOMAXPROCS(0), int64(math.MaxInt64)
	if cores > 2 { // else it makes no difference
		if m := host.AvailableMemory(); m.Total > 0 {
			available = m.Available
		}
		if n := coresFor(cores, available); n < cores && os.Getenv("GOMAXPROCS") == "" {
			cores = n
			runtime.GOMAXPROCS(n)
		}
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryTarget(cores, available))
	}
}

// AllowMemory moves the target for a command that also keeps so many bytes. As all of them come and go, there is room for as many that
// are no longer used.
func AllowMemory(kept int64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(debug.SetMemoryLimit(-1) + 2*kept)
	}
}
