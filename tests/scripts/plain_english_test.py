"""Sentences that readers stumbled over must not come back, in comments, messages, help texts or documents.

usage: plain_english_test.py SOURCE_DIRECTORY
"""
import bisect
import pathlib
import re
import sys

# What to look for, a sentence that it must find, and how to say it instead.
PATTERNS = [
    (r"\bno state is empty memory", "No state is empty memory.", "leaving out `state` means empty memory"),
    (r"\bof nobody\b|\bnobody's business\b|\bnobody (says|wants|asked|trained)\b", "queries of nobody stand for those before",
     "say who does it, or use the passive voice"),
    (r"\baccepted,? and said\b", "are accepted and said", "accepted and reported"),
    (r"\bwhat was to be kept\b|\bto be kept is kept\b", "what was to be kept is kept", "interrupted; a checkpoint was written"),
    (r"\btokens have never been\b", "the last 100 tokens have never been", "as if the last 100 tokens had not been read"),
    (r"\bis no drop-in\b", "it is no drop-in replacement", "it is not a drop-in replacement"),
    (r"\bclocks meet\b", "Where the clocks meet is in the plot.", "the plot shows the measured crossover"),
    (r"\bthe likely is\b", "Below 1 the likely is likelier", "below 1: less random"),
    (r"\"of (the|a|an|this|each) ", "\"Of the draws\"", "begin a help text with a noun or a verb: \"Seed of the random choices\""),
    (r"\bgood for nothing\b", "good for nothing but to be assigned to", "may only be assigned to or destroyed"),
    (r"\bbeat stands still\b|\bto blame\b", "whose beat stands still is the one to blame", "the rank whose heartbeat stopped"),
    (r"\bper token is none\b|\b(which|that) (is|are) none\b", "is {}, which is none", "is not one of ...; out of range"),
    (r"\b(its|the) begin\b(?! (token|piece|id)|\()", "expected P2 at its begin", "at the start"),
    (r"\bwhat is if\b", "Of what can be carried, what is if not told otherwise", "the default"),
    (r"\bbuy a step\b", "that buy a step that never draws", "so that a step draws nothing"),
    (r"\bgoes? nowhere\b", "what others hold (NaN even) goes nowhere", "has no effect"),
    (r"\bnothing to keep\b|\bhad to keep was\b", "there is nothing to keep, and the first one does", "there is no checkpoint to write yet"),
    (r"\bfor want of\b", "for want of a model they decay by one constant gate", "there is no model, so all tokens have the same gate"),
    (r"\bcount for the \w+'? half\b", "fewer of them count for the keys' half accordingly", "shrinks by the same factor"),
    (r"\b(key|query|token) meets S\b", "a key meets S samples, then a query does", "each key is compared with S samples"),
    (r"\bwaits for nothing but\b", "a step that waits for nothing but its weights", "takes no longer than reading its weights"),
    (r"\ba line out for each\b|\bcome a line each\b|\ban object a line\b", "A line out for each line in, at once",
     "each line of the input gives one line of output; one object per line"),
    (r"\bnames of two files begin with\b", "what the names of two files begin with", "common prefix of the two files"),
    (r"\bcore may be with another\b", "each time a core may be with another process", "a thread that shares its core with another process"),
    (r"\bmust be finite, but for\b", "must be finite, but for logarithms", "must be finite, with these exceptions"),
    (r"\bgoes on where\b|\bwrites on until\b|\bfor ever\b", "the model goes on where it stands", "continues from; continues until; always"),
    (r"\"the same (for|to|in) ", "\"The same for evaluation\"", "in a help text, say what: the line above may be another"),
]
FOLDERS = ["include", "src", "examples", "fuzz", "tests", "scripts", "cmake", "docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"]
SUFFIXES = {".h", ".cc", ".py", ".sh", ".cmake", ".md"}


def in_one_line(lines):
    """The text without line ends and comment marks, and where each line begins in it: sentences go over several lines."""
    starts, parts, size = [], [], 0
    for line in lines:
        starts.append(size)
        parts.append(re.sub(r"^\s*(//+|#+)?\s*", "", line).rstrip() + " ")
        size += len(parts[-1])
    return "".join(parts), starts


def findings(text):
    whole, starts = in_one_line(text.splitlines())
    for pattern, _, instead in PATTERNS:
        for match in re.finditer(pattern, whole, re.IGNORECASE):
            yield bisect.bisect_right(starts, match.start()), match.group(), instead


def main():
    for _, sentence, instead in PATTERNS:
        for text in (sentence, sentence.replace(" ", "\n  // ", 1)):
            assert instead in (found[2] for found in findings(text)), f"no pattern finds its own example: {text}"

    root = pathlib.Path(sys.argv[1])
    files = [f for name in FOLDERS for f in [root / name, *sorted((root / name).rglob("*"))]]
    files = [f for f in files if f.suffix in SUFFIXES and f.name != pathlib.Path(__file__).name]
    assert len(files) > 100, f"{root}: {len(files)} files, expected the source tree"
    count = 0
    for file in files:
        for line, found, instead in findings(file.read_text(encoding="utf-8")):
            print(f"{file.relative_to(root)}:{line}: \"{found}\": write instead: {instead}")
            count += 1
    sys.exit(1 if count else 0)


if __name__ == "__main__":
    main()
