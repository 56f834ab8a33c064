"""Ways to damage a file, by its kind. Each takes bytes and a seeded generator, and gives other bytes."""

import functools
import json
import re
import struct

from formats import UNREADABLE, read_safetensors, safetensors_of, write_safetensors

NUMBERS = (0, 1, -1, 2, 7, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**48, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
FLOATS = (float("nan"), float("inf"), float("-inf"), 3.4e38, -3.4e38, 1e-45, -0.0, 1e30)
DEEP = 200_000

# Bytes.


def flip_bits(data, rng):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def truncate(data, rng):
    return data[: rng.choice((0, 1, len(data) // 2, max(len(data) - 1, 0), rng.randrange(len(data) + 1)))]


def append(data, rng):
    return data + rng.choice((b"\0", b"\n", rng.randbytes(rng.choice((1, 64, 5000))), data))


def splice(data, rng):
    """A part of the file written over another part of it."""
    if not data:
        return data
    size = rng.randrange(1, min(len(data), 4096) + 1)
    begin, to = rng.randrange(len(data)), rng.randrange(len(data))
    return data[:to] + data[begin : begin + size] + data[to + size :]


def overwrite(data, rng):
    if not data:
        return data
    at, size = rng.randrange(len(data)), rng.choice((1, 4, 8, 64, 1024))
    filling = rng.choice((b"\0" * size, b"\xff" * size, rng.randbytes(size), b"9" * size))
    return data[:at] + filling + data[at + size :]


def insert(data, rng):
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.choice((1, 3, 4, 100))) + data[at:]


def delete(data, rng):
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.choice((1, 4, 8, 1000)) :]


def put_number(data, rng):
    """A number of 4 or 8 bytes, at a place where one may stand; more often near the start, where headers are."""
    if len(data) < 8:
        return data
    at = rng.randrange(0, min(len(data), rng.choice((64, 160, len(data)))) - 7)
    at -= at % rng.choice((1, 4, 8))
    size, order = rng.choice((4, 8)), rng.choice(("little", "little", "big"))
    word = (rng.choice(NUMBERS) % (1 << 8 * size)).to_bytes(size, order)
    return data[:at] + word + data[at + size :]


def put_float(data, rng):
    if len(data) < 8:
        return data
    at = 4 * rng.randrange(len(data) // 4)
    return data[:at] + struct.pack("<f", rng.choice(FLOATS)) * rng.choice((1, 1, 16)) + data[at + 4 :]


BYTES = (flip_bits, truncate, append, splice, overwrite, insert, delete, put_number, put_float)

# Texts.


def put_words(data, rng):
    word = rng.choice((b"\xff\xfe", b"\0", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r\n", b"\t", b"\x1b[2J", b"x" * 20_000, b" " * 5000,
                       "\u2581\u2585\u00a0\u3000".encode(), b"%s%n", b"\n" * 3000, b"99999999999999999999", b"-1"))
    at = rng.randrange(len(data) + 1)
    return data[:at] + word + data[at:]


TEXT = (put_words, put_words, flip_bits, truncate, append, splice, delete)

# JSON.


def _places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], path + (key,))
    elif isinstance(value, list):
        for i in range(min(len(value), 8)):
            yield from _places(value[i], path + (i,))


class _Raw(str):
    """Text that goes into the JSON as it is."""


def _hostile_value(rng):
    return rng.choice((
        *NUMBERS, -(2**63), -(2**63) - 1, 1e308, 0.5, -1.5, None, True, False, "", "x" * 100_000, "a\0b", "../../../etc/passwd", [], {}, [[]], [0] * 10_000,
        {"a": {"b": 1}}, _Raw("NaN"), _Raw("1e999999"), _Raw("-Infinity"), _Raw('"\\ud800"'), _Raw("[" * DEEP), _Raw("[" * DEEP + "]" * DEEP),
        _Raw('{"a":' * DEEP + "1" + "}" * DEEP), _Raw("9" * 5000),
    ))


def _dump(document, raw):
    text = json.dumps(document)
    for mark, value in raw.items():
        text = text.replace(f'"{mark}"', value)
    return text.encode()


def json_value(data, rng):
    """One value becomes another, disappears, moves or gets company."""
    try:
        document = json.loads(data)
    except UNREADABLE:
        return put_words(data, rng)
    path = rng.choice(list(_places(document)))
    raw = {}
    value = _hostile_value(rng)
    if isinstance(value, _Raw):
        raw["@raw@"] = value
        value = "@raw@"
    if not path:
        return _dump(value, raw)
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    last, before = path[-1], parent[path[-1]]
    action = rng.randrange(8)
    if action == 0:
        del parent[last]
    elif action == 1 and isinstance(parent, dict):
        parent[str(rng.choice(("unknown", last + "2", "", "\u0000")))] = value
    elif action == 2 and isinstance(parent, list):
        parent.insert(last, value)
    elif action == 3 and isinstance(before, int):
        parent[last] = before + rng.choice((-1, 1, 1000, -1000))
    elif action == 4 and isinstance(before, str):
        numbers = list(re.finditer(r"\d+", before))
        if numbers:  # settings of estimators
            chosen = rng.choice(numbers)
            parent[last] = before[: chosen.start()] + str(rng.choice((0, 1, 3, 64, 100_000, *NUMBERS))) + before[chosen.end() :]
        else:
            parent[last] = before + rng.choice(("x", ":", ",", ":window=1000000", ":samples=0", ":seed=-1", "\n"))
    else:
        parent[last] = value
    return _dump(document, raw)


def json_twice(data, rng):
    """A key that is there twice."""
    text = data.decode("utf-8", errors="replace")
    at = text.find("{")
    return (text[: at + 1] + rng.choice(('"task": "lm", ', '"kind": "byte", ', '"version": 2, ', '"width": 16, ')) + text[at + 1 :]).encode()


def json_line(data, rng):
    lines = data.split(b"\n")
    place = rng.randrange(len(lines))
    lines[place] = json_value(lines[place], rng)
    return b"\n".join(lines)


JSON = (json_value,) * 8 + (json_twice,) + TEXT

# Tensors.


def _tensors(change):
    @functools.wraps(change)
    def mutate(data, rng):
        try:
            metadata, tensors = read_safetensors(data)
            return change(metadata, tensors, rng) if tensors else data
        except UNREADABLE:
            return flip_bits(data, rng)

    return mutate


@_tensors
def tensor_values(metadata, tensors, rng):
    name = rng.choice(list(tensors))
    dtype, shape, values = tensors[name]
    everywhere = rng.random() < 0.3
    word = struct.pack("<f", rng.choice(FLOATS))
    count = len(values) // 4
    if count and everywhere:
        values = word * count
    elif count:
        at = 4 * rng.randrange(count)
        values = values[:at] + word + values[at + 4 :]
    tensors[name] = (dtype, shape, values)
    return write_safetensors(metadata, tensors)


@_tensors
def tensor_type(metadata, tensors, rng):
    name = rng.choice(list(tensors))
    _, shape, values = tensors[name]
    tensors[name] = (rng.choice(("F64", "F32", "F16", "BF16", "I64", "I8", "U8", "BOOL", "F8_E5M2", "", "f32", "X" * 1000)), shape, values)
    return write_safetensors(metadata, tensors)


@_tensors
def tensor_shape(metadata, tensors, rng):
    name = rng.choice(list(tensors))
    dtype, shape, values = tensors[name]
    shape = list(shape)
    action = rng.randrange(5)
    if action == 0 and shape:
        shape[rng.randrange(len(shape))] = rng.choice(NUMBERS)
    elif action == 1:
        shape = shape[::-1]
    elif action == 2:
        shape = shape + [1] * rng.choice((1, 70, 10_000))
    elif action == 3:
        shape = [rng.choice(NUMBERS) for _ in range(3)]
    else:
        shape = [0] + shape
    tensors[name] = (dtype, shape, values)
    return write_safetensors(metadata, tensors)


@_tensors
def tensor_names(metadata, tensors, rng):
    name = rng.choice(list(tensors))
    action = rng.randrange(3)
    value = tensors[name]
    if action != 1:
        del tensors[name]
    if action != 0:
        tensors[rng.choice((name + "x", "", "\u0000", name.replace("0", "99999999999"), "x" * 10_000, "embedding.weight_scale"))] = value
    return write_safetensors(metadata, tensors)


@_tensors
def tensor_offsets(metadata, tensors, rng):
    """Tensors that overlap, lie past the end, or backwards."""
    data = write_safetensors(metadata, tensors)
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    offsets = header[rng.choice(list(tensors))]["data_offsets"]
    place = rng.randrange(2)
    offsets[place] = rng.choice((*NUMBERS, offsets[place] + 4, offsets[place] - 4, 1.5, "0", None))
    return safetensors_of(header, data[8 + size :])


def tensor_header(data, rng):
    """The header as JSON from nowhere, its size put right."""
    if len(data) < 8:
        return data
    size = min(struct.unpack("<Q", data[:8])[0], len(data) - 8)
    return safetensors_of(json_value(data[8 : 8 + size], rng), data[8 + size :])


TENSORS = (tensor_values, tensor_values, tensor_values, tensor_type, tensor_shape, tensor_names, tensor_offsets, tensor_header, *BYTES)

BY_KIND = {"bytes": BYTES, "text": TEXT, "json": JSON, "json lines": (json_line,) * 8 + TEXT, "tensors": TENSORS, "state": BYTES + (put_number,) * 4 + (put_float,) * 2}


def mutated(data, kind, rng):
    """(bytes, names of what was done)"""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        mutate = rng.choice(BY_KIND[kind])
        data = mutate(data, rng)
        done.append(mutate.__name__)
    return data, done
