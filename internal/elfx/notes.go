package elfx

import (
	"debug/elf"
	"fmt"
	"math/bits"
)

// note is a region of notes (gABI, chapter 5).
type note struct {
	region
	align int64 // of the entries and their parts, in bytes
}

const (
	noteABITag      = 1 // NT_GNU_ABI_TAG
	noteProperties  = 5 // NT_GNU_PROPERTY_TYPE_0
	abiLinux        = 0
	propertyX86ISA  = 0xc0008002 // GNU_PROPERTY_X86_ISA_1_NEEDED
	noteHeaderSize  = 12
	propertyHeader  = 8
	maxISALevel     = 4
	abiTagSize      = 16
	propertyISASize = 4
)

// readNotes reads the notes that say what machine and kernel the file needs. A damaged note ends the reading, for ld.so too
// takes no offence.
func (p *parser) readNotes() error {
	for i, n := range p.notes {
		if i == maxNotes {
			break
		}
		for at, count := int64(0), 0; at+noteHeaderSize <= n.size && count < maxNotes; count++ {
			next, err := p.readNote(n, at)
			if err != nil {
				return err
			}
			if next == 0 {
				break
			}
			at = next
		}
	}
	return nil
}

// readNote returns where the next note is, 0 when there cannot be one.
func (p *parser) readNote(n note, at int64) (next int64, err error) {
	order := p.image.order
	h, err := p.window.in(n.region, at, noteHeaderSize)
	if err != nil {
		return 0, err
	}
	nameSize, size, kind := int64(order.Uint32(h)), int64(order.Uint32(h[4:])), order.Uint32(h[8:])
	start := at + alignUp(noteHeaderSize+nameSize, n.align)
	next = at + alignUp(start-at+size, n.align)
	if start+size > n.size {
		return 0, nil
	}
	const owner = "GNU\x00"
	if nameSize != int64(len(owner)) || size > maxNote || (kind != noteABITag && kind != noteProperties) {
		return next, nil
	}
	name, err := p.window.in(n.region, at+noteHeaderSize, nameSize)
	if err != nil || string(name) != owner {
		return next, err
	}
	body, err := p.window.in(n.region, start, size)
	if err != nil {
		return 0, err
	}
	if kind == noteProperties {
		p.readProperties(body, n.align)
	} else if len(body) >= abiTagSize && order.Uint32(body) == abiLinux {
		p.Kernel = fmt.Sprintf("%d.%d.%d", order.Uint32(body[4:]), order.Uint32(body[8:]), order.Uint32(body[12:]))
	}
	return next, nil
}

// readProperties looks for the processor needed (x86-64 psABI, "Program Property"): one bit for each level.
func (p *parser) readProperties(body []byte, align int64) {
	order := p.image.order
	for len(body) >= propertyHeader {
		kind, size := order.Uint32(body), int64(order.Uint32(body[4:]))
		body = body[propertyHeader:]
		if size > int64(len(body)) {
			return
		}
		if kind == propertyX86ISA && size >= propertyISASize && p.Machine == elf.EM_X86_64 {
			p.ISALevel = min(bits.Len32(order.Uint32(body)), maxISALevel)
		}
		body = body[min(alignUp(size, align), int64(len(body))):]
	}
}

func alignUp(n, align int64) int64 { return (n + align - 1) / align * align }
