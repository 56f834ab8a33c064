"""The page of the demo, made of small canned results: demo_page_test.py scripts/demo_page.py scripts/austen.py"""
import html.parser
import json
import re
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path

PAGE, AUSTEN = sys.argv[1], sys.argv[2]
VOID = {"meta", "br", "hr", "img", "link"}


class Parsed(html.parser.HTMLParser):
    """Text, tags, links and tick labels of a page; tags that do not match are an error."""

    def __init__(self, page):
        super().__init__()
        self.open, self.text, self.counts, self.links, self.cells, self.ticks = [], "", {}, [], [], []
        self.tick = None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag == "a":
            self.links.append(attrs["href"])
        if tag == "td":
            self.cells.append(attrs)
        if attrs.get("class") == "xlabels":
            self.ticks.append([])
        self.tick = re.match(r"left:([0-9.]+)%", attrs.get("style", "")) if tag == "span" else None
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            raise AssertionError(f"</{tag}> ends nothing")

    def handle_data(self, data):
        if self.tick and self.open[-1] == "span":
            self.ticks[-1].append((float(self.tick.group(1)), data))
            self.tick = None
        self.text += data


NLL = {("rfa_gate", 256): 4.111, ("rfa_gate", 1024): 4.095, ("rfa_gate", 0): 4.091, ("softmax", 256): 4.142, ("softmax", 1024): 4.333, ("softmax", 9001): 5.125}
PARAMETERS = {"rfa_gate": 725_004, "softmax": 724_352}


def write_decode(place, slow=(1, 1, 1)):
    """Three rounds; `slow` is how much longer softmax takes in each."""
    for turn, factor in enumerate(slow):
        records = []
        for depth in (0, 256, 1024, 4096, 16384, 32768):
            rfa = 0.02 if depth == 0 else 0.01
            for op, seconds, state in (("rfa_gate", rfa, 200_000), ("softmax", (0.01 + depth * 1e-6) * factor, depth * 3072)):
                records.append({"op": op, "depth": depth, "seconds": seconds, "tokens_per_second": 32 / seconds, "state_bytes": state,
                                "peak_rss_bytes": 20_000_000 + state, "parameters": 749_580})
        (place / f"decode-{turn + 1}.json").write_text(json.dumps(records))


def write_model(place, model):
    (place / model / "trainer").mkdir(parents=True)
    (place / model / "config.json").write_text(json.dumps({"layers": 3, "width": 128}))
    (place / model / "trainer" / "options.json").write_text(json.dumps({"stateful": str(model == "rfa_gate").lower(), "segment": 256}))
    log = [{"step": step, "loss": 7 - step / 100, "tokens": step * 2048, "seconds": step / 5} for step in range(10, 110, 10)]
    log.append({"step": 100, "valid_nll": 6.25, "valid_perplexity": 518.0, "valid_bits_per_byte": 2.5})
    (place / model / "log.jsonl").write_text("\n".join(map(json.dumps, log)))
    (place / f"{model}.train.json").write_text(json.dumps({"parameters": PARAMETERS[model], "step": 100, "tokens": 204_800, "seconds": 20.0}))
    scores = [{"memory": "carried" if segment == 0 else "reset", "segment": segment, "tokens": 9000, "nll": nll, "bits_per_byte": nll / 2}
              for (name, segment), nll in NLL.items() if name == model]
    (place / f"{model}.eval.json").write_text(json.dumps(scores))
    (place / f"{model}.sample.json").write_text(json.dumps({"text": f" wrote {model} & <more>"}))
    for position in (70, 700):
        info = {"position": position, "bytes": 210_000 if model == "rfa_gate" else 3072 * position}
        (place / f"{model}-{position}.state.json").write_text(json.dumps(info))


def write_results(place, others=0, slow=(1, 1, 1)):
    write_decode(place, slow)
    (place / "load.json").write_text(json.dumps({"others": others, "repeats": 7}))
    for model in PARAMETERS:
        write_model(place, model)
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

    def page(self, **results):
        write_results(self.place, **results)
        subprocess.run([sys.executable, PAGE, str(self.place), "--title", "A & B", "--prompt", "Once", "--seconds", "75"], check=True)
        return (self.place / "index.html").read_text()

    def test_holds_all_results_and_needs_no_other_file(self):
        page = self.page()
        parsed = Parsed(page)
        self.assertEqual(parsed.open, [])
        self.assertEqual(parsed.counts["svg"], 3)
        self.assertEqual(parsed.counts["table"], 4)
        for expected in ("wrote rfa_gate & <more>", "wrote softmax & <more>", "A & B", "1 min 15 s", "32,768", "kill -9", "was well", "200 kB", "101 MB", "a CPU"):
            self.assertIn(expected, parsed.text)
        for foreign in ("src=", "<link", "@import", 'href="http', "<script", "url("):
            self.assertNotIn(foreign, page)

    def test_compares_models_with_the_same_memory(self):
        parsed = Parsed(self.page())
        rows = {"empty every 256 tokens": ("4.111", "4.142"), "empty every 1,024 tokens": ("4.095", "4.333"), "never reset: all 9,000 tokens": ("4.091", "5.125")}
        for row, figures in rows.items():
            self.assertIn(row + "".join(figures), parsed.text)
        self.assertIn("4.11 against 4.14", parsed.text)
        self.assertIn("RFA-Gate is ahead of softmax by 0.031", parsed.text)

    def test_models_within_the_noise_of_seeds_are_level(self):
        write_results(self.place)
        scores = json.loads((self.place / "softmax.eval.json").read_text())
        scores[0]["nll"] = NLL[("rfa_gate", 256)] - 0.01
        (self.place / "softmax.eval.json").write_text(json.dumps(scores))
        subprocess.run([sys.executable, PAGE, str(self.place)], check=True)
        self.assertIn("are level, 0.010 apart", Parsed((self.place / "index.html").read_text()).text)

    def test_counts_the_parameters_that_training_reports(self):
        text = Parsed(self.page()).text
        self.assertIn("725,004 (RFA-Gate) and 724,352 (softmax)", text)
        self.assertNotIn("749,580", text)

    def test_compares_depths_without_the_empty_session(self):
        text = Parsed(self.page()).text
        self.assertIn("differs by 0% between the fastest and the slowest length", text.replace("\n", " "))
        self.assertNotIn("1,600", text)  # tokens per second of RFA-Gate at depth 0

    def test_factors_come_with_their_spread(self):
        text = Parsed(self.page(slow=(1, 1.05, 1.1))).text
        self.assertIn("4.5 \u00d7 (4.3 to 4.7)", text)
        self.assertIn("up to 10% between rounds", text)
        self.assertNotIn("quiet machine", text)

    def test_says_when_the_machine_was_busy(self):
        self.assertIn("2 other tasks ran on this machine", Parsed(self.page(others=2)).text)

    def test_says_when_rounds_disagree(self):
        self.assertIn("The rounds differ more than on a quiet machine", Parsed(self.page(slow=(1, 1, 1.3))).text)

    def test_terms_are_explained_and_links_lead_somewhere(self):
        page = self.page()
        for term in ("RFA-Gate", "softmax", "state", "nll"):
            self.assertIn(f"<dt>{term}</dt>", page)
        links = Parsed(page).links
        self.assertGreater(len(links), 5)
        for link in links:
            self.assertTrue(link.startswith("../../"), link)
            self.assertTrue((Path(PAGE).parent.parent / link.removeprefix("../../")).is_file(), link)

    def test_colours_are_those_of_the_style_sheet(self):
        page = self.page()
        style, body = page.split("</style>")
        self.assertIn("prefers-color-scheme: dark", style)
        self.assertIsNone(re.search(r"#[0-9a-fA-F]{3,8}\b|rgb\(|(fill|stroke)=", body.replace("&#x27;", "")))

    def test_narrow_screens_have_room_for_tick_labels_and_cells(self):
        parsed = Parsed(self.page())
        self.assertEqual(len(parsed.ticks), 3)
        for ticks in parsed.ticks:
            self.assertGreater(len(ticks), 1)
            for (left, one), (right, other) in zip(ticks, ticks[1:]):
                # 240 px of drawing, 7 px a character.
                self.assertGreater((right - left) / 100 * 240, 7 * (len(one) + len(other)) / 2, (one, other))
        self.assertTrue(all(cell.get("data-label") for cell in parsed.cells))

    def test_missing_results_are_named(self):
        write_results(self.place)
        for name in ("session.json", "softmax.eval.json", "load.json"):
            with self.subTest(name):
                kept = (self.place / name).read_bytes()
                (self.place / name).unlink()
                done = subprocess.run([sys.executable, PAGE, str(self.place)], capture_output=True, text=True, check=False)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(name, done.stderr)
                self.assertNotIn("Traceback", done.stderr)
                (self.place / name).write_bytes(kept)


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
