package condatest

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
)

// msgpack encodes maps, lists, strings, bytes and whole numbers (msgpack specification, "Formats").
func msgpack(v any) []byte { return appendMsgpack(nil, v) }

func appendMsgpack(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, 0xc0)
	case bool:
		if v {
			return append(b, 0xc3)
		}
		return append(b, 0xc2)
	case int:
		return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
	case int64:
		return appendMsgpack(b, int(v))
	case string:
		return append(binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(len(v))), v...)
	case []byte:
		return append(binary.BigEndian.AppendUint32(append(b, 0xc6), uint32(len(v))), v...)
	case []any:
		b = binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(len(v)))
		for _, x := range v {
			b = appendMsgpack(b, x)
		}
		return b
	case map[string]any:
		b = binary.BigEndian.AppendUint32(append(b, 0xdf), uint32(len(v)))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			b = appendMsgpack(appendMsgpack(b, k), v[k])
		}
		return b
	}
	panic(fmt.Sprintf("msgpack of %T", v))
}
