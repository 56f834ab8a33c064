"""Images through raffia classify: pictures_test.py PATH/raffia tests/golden fuzz/corpus/picture_fuzz"""
import gzip
import json
import lzma
import os
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path

import command_case

RAFFIA, GOLDEN, PICTURES = sys.argv[1], sys.argv[2], Path(sys.argv[3])


class Pictures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.model = command_case.grey_image_model(GOLDEN, cls.directory.name)

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def classify(self, *files):
        return subprocess.run([RAFFIA, "classify", self.model, *map(str, files), "--top", "3", "--json"], capture_output=True,
                              text=True, timeout=60)

    def refused(self, name, content):
        file = Path(self.directory.name) / name
        file.write_bytes(content)
        done = self.classify(file)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        return done.stderr

    def test_png_jpeg_and_pgm_of_one_image_have_the_same_classes(self):
        # Four blocks of 8 x 8 pixels of one value each, which JPEG keeps as they are.
        image = bytes((40, 90, 140, 210)[2 * (y // 8) + x // 8] for y in range(12) for x in range(12))
        rows = b"".join(b"\0" + image[12 * y:12 * y + 12] for y in range(12))
        files = [Path(self.directory.name) / name for name in ("grey.pgm", "grey.png")]
        files[0].write_bytes(b"P5 12 12 255\n" + image)
        files[1].write_bytes(png_of(12, 12, zlib.compress(rows)))
        done = self.classify(*files, PICTURES / "grey.jpg")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        by_pgm, by_png, by_jpeg = (json.loads(line)["classes"] for line in done.stdout.splitlines())
        self.assertEqual(sorted(each["class"] for each in by_pgm), [0, 1, 2])
        self.assertEqual(by_png, by_pgm)
        self.assertEqual(by_jpeg, by_pgm)

    def test_compressed_files_are_what_they_were_before(self):
        image = bytes(i % 251 for i in range(144))
        header = "{'descr': '<f4', 'fortran_order': False, 'shape': (12, 12), }".ljust(117) + "\n"
        array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack("<144f", *(value / 255 for value in image))
        rows = b"".join(b"\0" + image[12 * y:12 * y + 12] for y in range(12))
        found = []
        for name, content in (("c.pgm", b"P5 12 12 255\n" + image), ("c.png", png_of(12, 12, zlib.compress(rows))), ("c.npy", array)):
            for ending, pack in (("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)):
                file = Path(self.directory.name) / (name + ending)
                file.write_bytes(pack(content))
                done = self.classify(file)
                self.assertEqual((done.returncode, done.stderr), (0, ""), file)
                found.append(json.loads(done.stdout)["classes"])
        self.assertEqual(len(found), 9)
        for classes in found:
            self.assertEqual(classes, found[0])
        self.assertIn("d.pgm.xz: byte 13: 3 bytes follow, expected 144", self.refused("d.pgm.xz", lzma.compress(b"P5 12 12 255\nabc")))
        self.assertIn("e.npy.gz: does not begin with \\x93NUMPY", self.refused("e.npy.gz", gzip.compress(b"P5")))

    def test_capital_endings_count(self):
        copy = Path(self.directory.name) / "GREY.PNG"
        copy.write_bytes((PICTURES / "grey.png").read_bytes())
        self.assertEqual(self.classify(copy).returncode, 0)

    def test_what_does_not_fit_the_model_is_refused_by_shape(self):
        self.assertIn("has shape [3, 12, 12], expected [1, 12, 12]", self.classify(PICTURES / "colour.png").stderr)
        self.assertIn("has shape [3, 12, 12], expected [1, 12, 12]", self.classify(PICTURES / "colour.jpg").stderr)

    def test_broken_files_are_refused(self):
        png, jpeg = (PICTURES / "grey.png").read_bytes(), (PICTURES / "grey.jpg").read_bytes()
        self.assertIn("a.png: is not an image, expected the first bytes of a PNG or JPEG file", self.refused("a.png", b"P5"))
        self.assertIn("b.png: byte 33: a chunk is cut off: the file is truncated", self.refused("b.png", png[:60]))
        damaged = png[:50] + bytes([png[50] ^ 1]) + png[51:]
        self.assertIn("c.png: byte 33: the checksum of a chunk differs: the file is damaged", self.refused("c.png", damaged))
        self.assertIn("d.jpg: has no end marker: the file is truncated", self.refused("d.jpg", jpeg[:-2]))
        self.assertIn("transparent.png: has transparent pixels", self.classify(PICTURES / "transparent.png").stderr)

    def test_a_small_file_cannot_ask_for_much_memory(self):
        wide = png_of(5000, 1, zlib.compress(bytes(5001)))
        self.assertIn("wide.png: cannot be decoded: 5000 x 1 pixels, expected at most 4096 a side", self.refused("wide.png", wide))
        packer = zlib.compressobj(1)
        bomb = png_of(1, 1, b"".join(packer.compress(bytes(1 << 24)) for _ in range(16)) + packer.flush())
        self.assertLess(len(bomb), 2 << 20)
        self.assertIn("bomb.png: cannot be decoded: ", self.refused("bomb.png", bomb))
        packed = b"".join(gzip.compress(bytes(1 << 24)) for _ in range(8))  # 128 MiB
        self.assertIn("bomb.pgm.gz: is more than 67,108,864 bytes when decompressed", self.refused("bomb.pgm.gz", packed))

    def test_holes_are_not_read(self):
        header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1024, 1024, 1024, 10), }".ljust(117) + "\n"
        array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
        for name, begin, said in (("hole.pgm", b"P5 12 12 255\n", "has 42,949,672,960 bytes, expected at most 67,108,864"),
                                  ("hole-idx", b"\0\0\x08\x03", "has 42,949,672,960 bytes, expected at most 4,294,967,296"),
                                  ("hole.npy", array, "the rest is a hole, not tensors")):
            file = Path(self.directory.name) / name
            file.write_bytes(begin)
            os.truncate(file, 40 << 30)
            done = subprocess.run([RAFFIA, "classify", self.model, str(file)], capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (1, ""), name)
            self.assertIn(f"{name}: ", done.stderr)
            self.assertIn(said, done.stderr)


def png_of(width, height, packed):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
