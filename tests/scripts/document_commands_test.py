"""Commands that the documents show exist, with the flags they show: document_commands_test.py SOURCE_DIRECTORY RAFFIA"""
import functools
import re
import shlex
import subprocess
import sys
import unittest
from pathlib import Path

SOURCE, RAFFIA = Path(sys.argv[1]).resolve(), sys.argv[2]
DOCUMENTS = sorted([*SOURCE.glob("*.md"), *SOURCE.glob("docs/*.md")])


def commands(text):
    """Command lines of raffia in the blocks of shell code, as lists of words."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            # Words before a raffia are variables and launchers; && and | begin another command.
            while words:
                cut = next((i for i, word in enumerate(words) if word in ("&&", "|", ";")), len(words))
                first, words = words[:cut], words[cut + 1 :]
                start = next((i for i, word in enumerate(first) if word == "raffia" or word.endswith("bin/raffia")), None)
                if start is not None:
                    yield first[start + 1 :]


@functools.cache
def help_of(path):
    """None where there is no such command."""
    done = subprocess.run([RAFFIA, *path, "--help"], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def subcommands(text):
    _, _, after = text.partition("\nSubcommands:\n")
    return re.findall(r"^  (\S+)", after.split("\n\n")[0], flags=re.MULTILINE)


def path_of(words):
    """The words that name a subcommand."""
    path = []
    for word in words:
        if word not in subcommands(help_of(tuple(path)) or ""):
            break
        path.append(word)
    return tuple(path)


class Commands(unittest.TestCase):
    def test_exist_with_their_flags(self):
        seen = 0
        for document in DOCUMENTS:
            for words in commands(document.read_text()):
                with self.subTest(f"{document.relative_to(SOURCE)}: raffia {' '.join(words)}"):
                    flags = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
                    path = path_of(words)
                    self.assertTrue(path or flags == {"--version"} or flags == {"--help"}, "no such command")
                    text = help_of(path)
                    if text is None and help_of(("train",)) is None:
                        continue  # built without training
                    self.assertIsNotNone(text)
                    for flag in flags:
                        self.assertRegex(text, rf"(^|[\s,]){re.escape(flag)}([\s,=\[]|$)")
                    seen += 1
        self.assertGreater(seen, 30)

    @unittest.skipIf(help_of(("train",)) is None, "built without training")
    def test_help_and_document_agree_on_what_is_held_out(self):
        table = (SOURCE / "docs/training.md").read_text().partition("\n## What is held out\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", table, flags=re.MULTILINE)
        self.assertEqual([task for task, _ in rows], subcommands(help_of(("train",))))
        for task, held_out in rows:
            if "--data" not in held_out:  # recall has no files
                continue
            words = " ".join(help_of(("train", task)).split())
            self.assertIn(f"(default: {held_out.replace('`', '')}, which", words, task)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
