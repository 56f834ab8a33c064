"""The file formats of docs/model-format.md and docs/state-format.md, as far as a hostile hand needs them: written, taken apart, sealed."""

import ctypes
import json
import random
import struct
import zlib

_xxhash = ctypes.CDLL("libxxhash.so.0")
_xxhash.XXH3_64bits_withSeed.restype = ctypes.c_uint64
_xxhash.XXH3_64bits_withSeed.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]


def xxh3(data, seed=0):
    return _xxhash.XXH3_64bits_withSeed(bytes(data), len(data), seed)


# Safetensors: header size, a JSON header, the bytes of all tensors.

# What reading a damaged file may raise.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, struct.error)


def read_safetensors(data):
    """(metadata, {name: (dtype, shape, bytes)}) of a sound file."""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    body = data[8 + size :]
    tensors = {}
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        tensors[name] = (tensor["dtype"], tensor["shape"], body[begin:end])
    return metadata, tensors


def write_safetensors(metadata, tensors):
    header, body = {"__metadata__": metadata} if metadata else {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    return safetensors_of(header, body)


def safetensors_of(header, body):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def seal_safetensors(data):
    """The same with the checksum of its bytes put right, and without those of config.json and the tokenizer: files of other writers have none."""
    if len(data) < 8:
        return data
    size = struct.unpack("<Q", data[:8])[0]
    try:
        header = json.loads(data[8 : 8 + size])
        metadata = header["__metadata__"]
        metadata.pop("config", None)
        metadata.pop("tokenizer", None)
    except UNREADABLE:
        return data
    body = data[8 + size :]
    if "xxh3" in metadata:
        metadata["xxh3"] = f"{xxh3(body):016x}"
    return safetensors_of(header, body)


# Images of states: magic, version, header size, fields of 64 bits, payload size, checksum, payload.

IMAGE_HEADERS = {b"RAFSTATE": 64, b"RAFWINST": 136, b"RAFKEYCA": 64, b"RAFSESSN": 56}


def seal_image(data):
    """Payload size and checksum of a state file put right, those of the images within first."""
    header = IMAGE_HEADERS.get(bytes(data[:8]))
    if header is None or len(data) < header:
        return data
    data = bytearray(data)
    if data[:8] == b"RAFSESSN":
        _seal_inner_images(data, header)
    struct.pack_into("<Q", data, header - 16, len(data) - header)
    struct.pack_into("<Q", data, header - 8, xxh3(data[: header - 8] + data[header:]))
    return bytes(data)


def _seal_inner_images(data, begin):
    """Blocks of a session that are images. Its description lists them: JSON before the blocks, of the size in the last field of the header."""
    at = begin + struct.unpack_from("<Q", data, begin - 24)[0]
    try:
        for block in json.loads(data[begin:at])["blocks"]:
            end = at + block["bytes"]
            if at <= end <= len(data):
                data[at:end] = seal_image(data[at:end])
            at = end
    except UNREADABLE:
        return


# A SentencePiece model: a protocol buffer.


def _varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def _field(number, value):
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def sentencepiece_model(pieces, charsmap=b""):
    """Pad, unknown, begin, end, 256 bytes, the end of a line, then these pieces."""
    normal, unknown, control, user_defined, byte = 1, 2, 3, 4, 6
    all_pieces = [("<pad>", control), ("<unk>", unknown), ("<s>", control), ("</s>", control)]
    all_pieces += [(f"<0x{i:02X}>", byte) for i in range(256)] + [("\n", user_defined)] + [(piece, normal) for piece in pieces]
    model = b""
    for place, (piece, kind) in enumerate(all_pieces):
        model += _field(1, _field(1, piece.encode()) + _field(2, -float(place)) + _field(3, kind))
    bpe = 2
    trainer = _field(3, bpe) + _field(35, 1) + _field(40, 1) + _field(41, 2) + _field(42, 3) + _field(43, 0)
    normalizer = _field(1, b"identity") + _field(2, charsmap) + _field(3, 0) + _field(4, 0) + _field(5, 1)
    return model + _field(2, trainer) + _field(3, normalizer)


def sp_checksum(model):
    return xxh3(model, xxh3(b"sp"))


# Arrays and images.


def npy(shape, values, descr="<f4"):
    text = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (descr, tuple(shape))
    text = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + struct.pack(f"<{len(values)}f", *values)


def pnm(kind, size, maximum, values):
    """P2, P3: as text; P5, P6: binary."""
    head = f"P{kind}\n# an image\n{size} {size}\n{maximum}\n".encode()
    if kind in (2, 3):
        return head + " ".join(map(str, values)).encode() + b"\n"
    return head + struct.pack(f">{len(values)}{'H' if maximum > 255 else 'B'}", *values)


def png(channels, size, values):
    rows = b"".join(b"\0" + bytes(values[i * size * channels : (i + 1) * size * channels]) for i in range(size))
    colour = {1: 0, 3: 2}[channels]
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, colour, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(kind, body) for kind, body in chunks)


def _png_chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def seal_png(data):
    """The checksums of all chunks put right."""
    out, at = data[:8], 8
    while at + 12 <= len(data):
        size = struct.unpack(">I", data[at : at + 4])[0]
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        if len(body) < size:
            break
        out += _png_chunk(kind, body)
        at += 12 + size
    return out + data[at:]


def jpeg(channels, size, values):
    """One brightness per block of 8 x 8 and channel: DC coefficients alone, in codes of 4 bits; values: one for each block and channel."""

    def segment(marker, body):
        return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body

    components = range(1, channels + 1)
    frame = struct.pack(">BHHB", 8, size, size, channels) + b"".join(bytes([c, 0x11, 0]) for c in components)
    dc_codes = bytes([0x00]) + bytes([0, 0, 0, 12] + [0] * 12) + bytes(range(12))
    ac_codes = bytes([0x10]) + bytes([1] + [0] * 15) + b"\0"
    scan = bytes([channels]) + b"".join(bytes([c, 0x00]) for c in components) + bytes([0, 63, 0])
    bits, before = "", [0] * channels
    for place, value in enumerate(values):
        level, channel = 8 * (value - 128) // 16, place % channels
        difference = level - before[channel]
        before[channel] = level
        size_of = abs(difference).bit_length()
        bits += f"{size_of:04b}"
        if size_of:
            bits += f"{difference if difference > 0 else difference + (1 << size_of) - 1:0{size_of}b}"
        bits += "0"  # no other coefficients
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    parts = (segment(0xDB, b"\0" + b"\x10" * 64), segment(0xC0, frame), segment(0xC4, dc_codes), segment(0xC4, ac_codes), segment(0xDA, scan))
    return b"\xff\xd8" + b"".join(parts) + data + b"\xff\xd9"


def idx(shape, values):
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + bytes(values)


# llama2.c.


def llama2c(sizes, rng):
    """sizes: width, ffn, layers, heads, kv_heads, vocabulary, length."""
    width, ffn, layers, heads, kv_heads, vocabulary, length = sizes
    head = width // heads
    count = vocabulary * width + width + length * head + layers * (2 * width + 2 * width * width + 2 * kv_heads * head * width + 3 * ffn * width)
    return struct.pack("<7i", *sizes) + struct.pack(f"<{count}f", *(rng.uniform(-0.5, 0.5) for _ in range(count)))


def tok_bin(pieces):
    out = struct.pack("<i", max(len(piece) for piece, _ in pieces))
    for piece, score in pieces:
        out += struct.pack("<fi", score, len(piece)) + piece
    return out


def floats(count, rng, spread=1.0):
    return [rng.uniform(-spread, spread) for _ in range(count)]


def packed_floats(count, rng, spread=1.0):
    return struct.pack(f"<{count}f", *floats(count, rng, spread))


def seeded(*words):
    return random.Random("/".join(map(str, words)))
