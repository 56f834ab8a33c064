"""The page of the demo, made of small canned results: demo_page_test.py scripts/demo_page.py scripts/austen.py"""
import html.parser
import json
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path

PAGE, AUSTEN = sys.argv[1], sys.argv[2]
VOID = {"meta", "br", "hr", "img", "link"}


class Balance(html.parser.HTMLParser):
    """Collects the text; tags that do not match are an error."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.counts = [], "", {}

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            raise AssertionError(f"</{tag}> ends nothing")

    def handle_data(self, data):
        self.text += data


def write_results(place):
    decode = []
    for depth in (0, 512, 32768):
        for op, seconds, state in (("rfa_gate", 0.01, 200_000), ("softmax", 0.01 + depth * 1e-6, depth * 3072)):
            decode.append({"op": op, "depth": depth, "seconds": seconds, "tokens_per_second": 32 / seconds, "state_bytes": state,
                           "peak_rss_bytes": 20_000_000 + state, "parameters": 640_000})
    (place / "decode.json").write_text(json.dumps(decode))
    for model in ("rfa_gate", "softmax"):
        (place / model).mkdir()
        (place / model / "config.json").write_text(json.dumps({"layers": 3, "width": 128}))
        log = [{"step": step, "loss": 7 - step / 100, "tokens": step * 2048, "seconds": step / 5} for step in range(10, 110, 10)]
        log.append({"step": 100, "valid_nll": 6.25, "valid_perplexity": 518.0, "valid_bits_per_byte": 2.5})
        (place / model / "log.jsonl").write_text("\n".join(map(json.dumps, log)))
        (place / f"{model}.sample.json").write_text(json.dumps({"text": f" wrote {model} & <more>"}))
        for position in (70, 700):
            info = {"position": position, "bytes": 210_000 if model == "rfa_gate" else 3072 * position}
            (place / f"{model}-{position}.state.json").write_text(json.dumps(info))
    (place / "first.txt").write_text(" she said")
    (place / "killed.txt").write_text(" that all")
    (place / "restored.txt").write_text(" that all was well")
    (place / "session.json").write_text(json.dumps({"bytes": 210_000, "position": 9}))
    (place / "machine.json").write_text(json.dumps({"cpu": "a CPU", "isa": "avx2", "threads": 2, "version": "0.1.0"}))


class DemoPage(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.place = Path(self.directory.name)

    def tearDown(self):
        self.directory.cleanup()

    def test_holds_all_results_and_needs_no_other_file(self):
        write_results(self.place)
        subprocess.run([sys.executable, PAGE, str(self.place), "--title", "A & B", "--prompt", "Once", "--seconds", "75"], check=True)
        page = (self.place / "index.html").read_text()
        balance = Balance()
        balance.feed(page)
        self.assertEqual(balance.open, [])
        self.assertEqual(balance.counts["svg"], 3)
        self.assertEqual(balance.counts["table"], 3)
        for expected in ("wrote rfa_gate & <more>", "wrote softmax & <more>", "A & B", "1 min 15 s", "32,768", "6.250", "kill -9", "was well", "200 kB", "101 MB", "a CPU"):
            self.assertIn(expected, balance.text)
        for foreign in ("src=", "<link", "@import", 'href="http', "<script", "black"):
            self.assertNotIn(foreign, page)

    def test_missing_results_are_named(self):
        write_results(self.place)
        (self.place / "session.json").unlink()
        done = subprocess.run([sys.executable, PAGE, str(self.place)], capture_output=True, text=True, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("session.json", done.stderr)


class Austen(unittest.TestCase):
    def test_reads_lines_of_all_records(self):
        def record(lines):
            body = b"X\n" + struct.pack(">3i", 2, 0x30301, 0x20300) + struct.pack(">2i", 16, len(lines))
            for line in lines:
                body += struct.pack(">2i", 9 | 1 << 12, len(line.encode())) + line.encode()
            return struct.pack(">I", len(body)) + zlib.compress(body)

        with tempfile.NamedTemporaryFile() as file:
            file.write(record(["Emma", "", "caf\u00e9"]) + record(["Persuasion"]))
            file.flush()
            done = subprocess.run([sys.executable, AUSTEN, file.name], capture_output=True, check=True)
        self.assertEqual(done.stdout.decode(), "Emma\n\ncaf\u00e9\nPersuasion\n")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
