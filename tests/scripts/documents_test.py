"""Links of the documents, and the places that scripts fill in them: documents_test.py SOURCE_DIRECTORY"""
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

SOURCE = Path(sys.argv[1]).resolve()
DOCUMENTS = sorted([*SOURCE.glob("*.md"), *SOURCE.glob("docs/*.md"), *SOURCE.glob("examples/**/*.md")])


def prose(text):
    """Without blocks of code, whose brackets are no links."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    """Of headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", prose(text), flags=re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        found.add(words.replace(" ", "-"))
    return found


class Documents(unittest.TestCase):
    def test_links_lead_to_files_and_headings(self):
        self.assertGreater(len(DOCUMENTS), 10)
        for document in DOCUMENTS:
            for link in re.findall(r"\]\(([^)\s]+)\)", prose(document.read_text())):
                if re.match(r"[a-z]+:", link):
                    continue
                path, _, anchor = link.partition("#")
                target = (document.parent / path).resolve() if path else document
                with self.subTest(f"{document.relative_to(SOURCE)}: {link}"):
                    self.assertTrue(target.exists())
                    if anchor:
                        self.assertIn(anchor, anchors(target.read_text()))

    def test_comments_of_the_sources_name_documents_that_exist(self):
        for path in [p for folder in ("src", "include", "scripts", "tests") for p in (SOURCE / folder).rglob("*") if p.suffix in (".h", ".cc", ".sh", ".py")]:
            for document, anchor in re.findall(r"\b(docs/[\w-]+\.md)(?:#([\w-]+))?", path.read_text()):
                with self.subTest(f"{path.relative_to(SOURCE)}: {document}"):
                    self.assertTrue((SOURCE / document).is_file())
                    if anchor:
                        self.assertIn(anchor, anchors((SOURCE / document).read_text()))

    def test_marks_of_tables_come_in_pairs(self):
        for document in DOCUMENTS:
            text = document.read_text()
            with self.subTest(document.name):
                self.assertEqual(re.findall(r"^<!-- table (\w+) -->$", text, re.MULTILINE), re.findall(r"^<!-- end (\w+) -->$", text, re.MULTILINE))

    def test_all_places_tell_the_same_time_of_the_tests(self):
        for command, files in (("scripts/test.sh", ("README.md", "CONTRIBUTING.md", "scripts/test.sh")), ("--all", ("CONTRIBUTING.md", "scripts/test.sh"))):
            told = {}
            for name in files:
                # The first range of minutes is that of the tests, the second that of --all; the script prints them the other way round.
                ranges = re.findall(r"\b(\d+ to \d+) minutes", (SOURCE / name).read_text())
                ranges = ranges[::-1] if name.endswith(".sh") else ranges
                told[name] = ranges[0 if command == "scripts/test.sh" else 1]
            self.assertEqual(len(set(told.values())), 1, f"{command}: {told}")

    def test_exit_codes_that_versions_promise_are_those_of_the_commands(self):
        table = (SOURCE / "docs/cli.md").read_text().partition("\n## Exit codes\n")[2].partition("\n## ")[0]
        codes = [code for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for code in row.split(", ")]
        promised = re.search(r"exit codes \((.*?)\)", (SOURCE / "VERSIONING.md").read_text()).group(1)
        self.assertEqual(re.findall(r"\d+", promised), codes)

    def test_bench_fills_every_table_of_its_pages(self):
        """Traced with a `table` that measures nothing, as on a machine of each page."""
        stubs = """
            active_isa() { echo "$ISA"; }
            is_wanted() { true; }
            table() { echo "$1 $2"; }
            grep() { true; }  # every table has its place
        """
        script = (SOURCE / "scripts" / "bench.sh").read_text().replace("source scripts/tables.sh", stubs).replace('cd "$(dirname "$0")/.."', f'cd "{SOURCE}"')
        pages = sorted(page for page in SOURCE.glob("docs/performance-*.md"))
        self.assertTrue(pages)
        for page in pages:
            isa = page.stem.partition("-")[2]
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env={**os.environ, "ISA": isa})
            called = [line.split() for line in done.stdout.splitlines()]
            self.assertEqual({document for document, _ in called}, {f"docs/{page.name}"})
            marks = re.findall(r"^<!-- table (\w+) -->$", page.read_text(), re.MULTILINE)
            with self.subTest(page.name):
                self.assertTrue(marks)
                self.assertEqual(len(marks), len(set(marks)))
                self.assertLessEqual(set(marks), {name for _, name in called})
                for title in re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE):
                    self.assertTrue(title.endswith(f" ({isa})"), title)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
