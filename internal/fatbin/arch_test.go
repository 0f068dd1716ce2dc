package fatbin

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSelection(t *testing.T) {
	cubin := func(sm int, variant string) Entry { return Entry{Kind: ELFImage, Arch: Arch{sm, variant}} }
	ptx := func(sm int, variant string) Entry { return Entry{Kind: PTX, Arch: Arch{sm, variant}} }
	tests := []struct {
		image  Entry
		device int
		want   Support
	}{
		{cubin(80, ""), 80, Native},
		{cubin(80, ""), 86, Native},
		{cubin(86, ""), 80, Unsupported},
		{cubin(80, ""), 90, Unsupported},
		{cubin(80, ""), 87, Unsupported}, // Tegra
		{cubin(87, ""), 87, Native},
		{cubin(87, ""), 89, Unsupported},
		{cubin(100, ""), 101, Unsupported},
		{cubin(100, ""), 103, Native},
		{cubin(100, ""), 120, Unsupported},
		{cubin(90, "a"), 90, Native},
		{cubin(100, "a"), 103, Unsupported},
		{cubin(100, "f"), 103, Native},
		{cubin(103, "f"), 100, Unsupported},
		{cubin(120, "f"), 121, Native},
		{cubin(100, "f"), 120, Unsupported},
		{ptx(70, ""), 70, Compiled},
		{ptx(70, ""), 121, Compiled},
		{ptx(70, ""), 87, Compiled},
		{ptx(90, ""), 80, Unsupported},
		{ptx(90, "a"), 90, Compiled},
		{ptx(90, "a"), 100, Unsupported},
		{ptx(100, "f"), 103, Compiled},
		{ptx(100, "f"), 120, Unsupported},
		{Entry{Kind: LTOIR, Arch: Arch{SM: 90}}, 90, Unsupported},
		{Entry{Kind: 77, Arch: Arch{SM: 90}}, 90, Unsupported},
	}
	for _, test := range tests {
		if got := test.image.Support(test.device); got != test.want {
			t.Errorf("%v %v on %d: %v, want %v", test.image.Kind, test.image.Arch, test.device, got, test.want)
		}
	}
}

func TestCoverage(t *testing.T) {
	f := scan(t, fixture(t, "host.so"), Options{})
	want := []Coverage{ // of the two registered regions; the second is linked from the relocatable one, which has PTX for 80
		{SM: 70, Unsupported: 2},
		{SM: 75, Native: 1, Unsupported: 1},
		{SM: 80, Native: 1, Compiled: 1},
		{SM: 90, Native: 1, Compiled: 1},
		{SM: 120, Compiled: 2},
	}
	got := f.Coverage(70, 75, 80, 90, 120)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("coverage (-want +got):\n%s", d)
	}
	for i, want := range []Support{Unsupported, Unsupported, Compiled, Compiled, Compiled} {
		if got[i].All() != want {
			t.Errorf("all on %d: %v, want %v", got[i].SM, got[i].All(), want)
		}
	}
	if c := scan(t, fixture(t, "host.o"), Options{}).Coverage(80)[0]; c.Native+c.Compiled != 3 {
		t.Errorf("an object file has %+v, want its relocatable region counted too", c)
	}
	if n := len(f.Coverage()); n != len(Devices()) {
		t.Errorf("coverage of %d devices, want all", n)
	}
}

// A device-linked region without any code for a device is linked again by the driver, when all its inputs have PTX.
func TestCoverageOfLinkedRegions(t *testing.T) {
	cubin := Entry{Kind: ELFImage, Arch: Arch{SM: 80}}
	ptx := Entry{Kind: PTX, Arch: Arch{SM: 80}}
	f := File{Linked: true, Regions: []Region{
		{Place: Executable, Wrapper: wrapperLinked, Entries: []Entry{cubin}},
		{Place: Relocatable, Entries: []Entry{cubin, ptx}},
		{Place: Relocatable, Entries: []Entry{cubin, ptx}},
	}}
	if got := f.Coverage(90)[0].All(); got != Compiled {
		t.Errorf("on 90: %v, want it compiled", got)
	}
	f.Regions[2].Entries = f.Regions[2].Entries[:1]
	if got := f.Coverage(90)[0].All(); got != Unsupported {
		t.Errorf("on 90 without the PTX of one input: %v, want unsupported", got)
	}
}

// TestAcceleratorFlag: the bit that is the "a" of sm_90a had another meaning in cubins for older GPUs, as libcublas 12.4 has.
func TestAcceleratorFlag(t *testing.T) {
	for _, test := range []struct {
		flags uint32
		want  Arch
	}{
		{0x005a055a, Arch{90, ""}},
		{0x005a0d5a, Arch{90, "a"}},
		{0x00320d32, Arch{50, ""}},
		{0x003c0d3c, Arch{60, ""}},
	} {
		head := make([]byte, 64)
		copy(head, "\x7fELF\x02\x01\x01\x33\x07")
		le.PutUint16(head[16:], typeExecutable)
		le.PutUint16(head[18:], machineCUDA)
		le.PutUint32(head[48:], test.flags)
		if h, is := decodeCubin(head); !is || h.arch != test.want {
			t.Errorf("%#x: %v %v", test.flags, h.arch, is)
		}
	}
}

func TestParseArch(t *testing.T) {
	for _, a := range []Arch{{SM: 80}, {SM: 90, Variant: "a"}, {SM: 100, Variant: "f"}} {
		if got := ParseArch(a.Name()); got != a {
			t.Errorf("%v became %v", a, got)
		}
	}
	for _, name := range []string{"", "a", "a90"} {
		if got := ParseArch(name); got != (Arch{}) {
			t.Errorf("%q became %v", name, got)
		}
	}
}
