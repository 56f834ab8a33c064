#!/usr/bin/env python3
"""Jane Austen's six novels as one text: scripts/austen.py Rdata.rdb > austen.txt

Reads the data file of the package r-cran-janeaustenr without R: records of a 4-byte big-endian size and a zlib stream, each the
serialisation of one vector of lines.
"""
import struct
import sys
import zlib

CHARACTERS, STRINGS = 9, 16  # types of the serialisation


def records(data):
    """The serialised objects of the file, one after the other."""
    at = 0
    while at + 4 < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        stream = zlib.decompressobj()
        unpacked = stream.decompress(data[at + 4 :])
        if len(unpacked) != size:
            raise ValueError(f"record at byte {at} has {len(unpacked)} bytes, expected {size}")
        yield unpacked
        at = len(data) - len(stream.unused_data)


def strings(serialised):
    """The strings of a character vector; an empty list for other objects."""
    if serialised[:2] != b"X\n":
        raise ValueError("not in the XDR format of R")
    at = 2
    version, _, _ = struct.unpack_from(">3i", serialised, at)
    at += 12
    if version == 3:  # the name of the native encoding follows
        at += 4 + struct.unpack_from(">i", serialised, at)[0]
    flags, count = struct.unpack_from(">2i", serialised, at)
    at += 8
    if flags & 255 != STRINGS:
        return []
    lines = []
    for _ in range(count):
        flags, length = struct.unpack_from(">2i", serialised, at)
        at += 8
        if flags & 255 != CHARACTERS:
            raise ValueError(f"element {len(lines)} has type {flags & 255}, expected {CHARACTERS}")
        lines.append(serialised[at : at + max(length, 0)].decode("utf-8"))  # a length of -1: not available
        at += max(length, 0)
    return lines


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], "rb") as file:
        data = file.read()
    for record in records(data):
        for line in strings(record):
            print(line)


if __name__ == "__main__":
    main()
