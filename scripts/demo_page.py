#!/usr/bin/env python3
"""The page of scripts/demo.sh: demo_page.py DIR [--title NAME] [--prompt TEXT] [--seconds N] writes DIR/index.html.

Reads what the commands printed into DIR: MODEL/log.jsonl, MODEL/config.json, MODEL/trainer/options.json, MODEL.train.json,
MODEL.eval.json, MODEL.sample.json, MODEL-N.state.json, decode-N.json (one per round), load.json, session.json, machine.json and the
texts of the session. The page is one file that needs no other, and no network.
"""
import argparse
import html
import json
import statistics
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # leaves nothing beside the scripts
from demo_chart import Series, chart, linear_axis, log_axis

MODELS = {"rfa_gate": "RFA-Gate", "softmax": "softmax"}
DOCS = "../../docs"  # from out/demo
# Rounds that differ by more were disturbed: on a quiet machine they agree within a few percent.
QUIET_SPREAD = 0.15
# Nats per token by which runs with other seeds differ: docs/results.md.
SEED_NOISE = 0.03


# ---- What the commands left

def read(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"demo_page.py: {path}: {error}")


def text_of(path):
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        sys.exit(f"demo_page.py: {error}")


def log_of(path):
    return [json.loads(line) for line in text_of(path).splitlines() if line.strip()]


class Decoding:
    """The rounds of raffia bench decode. Every figure is the median of the rounds; spans go from the lowest to the highest round."""

    def __init__(self, place):
        paths = sorted(place.glob("decode-*.json"))
        if not paths:
            sys.exit(f"demo_page.py: {place}: no decode-N.json, expected one per round of raffia bench decode")
        self.rounds = [{(r["op"].split(":")[0], r["depth"]): r for r in read(path)} for path in paths]
        every = set.intersection(*(set(found) for found in self.rounds))
        # An empty session has another path through the code, and no length to compare: depth 0 is left out.
        self.depths = sorted(depth for model, depth in every if model == "rfa_gate" and depth > 0 and ("softmax", depth) in every)
        if not self.depths:
            sys.exit(f"demo_page.py: {paths[0]}: no depth above 0 was measured for both models")
        self.deepest = self.depths[-1]

    def all(self, model, depth, name):
        return [found[(model, depth)][name] for found in self.rounds]

    def median(self, model, depth, name):
        return statistics.median(self.all(model, depth, name))

    def factors(self, depth):
        """How many times as fast as softmax RFA-Gate is: one figure per round."""
        return [soft / rfa for soft, rfa in zip(self.all("softmax", depth, "seconds"), self.all("rfa_gate", depth, "seconds"))]

    def noise(self):
        """The largest difference between rounds of the same measurement."""
        return max(max(times) / min(times) - 1 for times in (self.all(m, d, "seconds") for m in MODELS for d in self.depths))

    def spread_over_depths(self, model):
        speeds = [self.median(model, depth, "tokens_per_second") for depth in self.depths]
        return max(speeds) / min(speeds) - 1


# ---- Words and figures

def human_bytes(count):
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count / size < 1000 else f"{count / size:.0f} {unit}"
    return f"{count:.0f} B"


def number(count):
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def span(values, digits=1):
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def coloured(model):
    return f'<span class="{model}">{MODELS[model]}</span>'


def table(heads, rows):
    """The first cell of a row is its name. Cells know the head of their column: narrow screens show it beside them."""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join(f'<tr><th scope="row">{row[0]}</th>' + "".join(
        f'<td data-label="{html.escape(name)}"><span>{cell}</span></td>' for name, cell in zip(heads[1:], row[1:])) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def card(body, title="", kind=""):
    heading = f'<h3 class="{kind}">{title}</h3>' if title else ""
    return f'<div class="card">{heading}{body}</div>'


def figure(value, words, kind="rfa_gate"):
    return card(f'<div class="figure {kind}">{value}</div><div class="quiet">{words}</div>')


# ---- Sections of the page

def headline(decoding, scores):
    deepest = decoding.deepest
    state, cache = (decoding.median(model, deepest, "state_bytes") for model in MODELS)
    factors = decoding.factors(deepest)
    segment = scores.shortest
    rfa, softmax = (scores.nll(model, segment) for model in MODELS)
    return "".join([
        figure(human_bytes(state), "of memory for a session with RFA-Gate, after any number of tokens"),
        figure(f"{cache / state:.0f} &times;", f"as much memory for softmax: its key-value cache holds {human_bytes(cache)} after {number(deepest)} tokens", "softmax"),
        figure(f"{statistics.median(factors):.1f} &times; <small>({span(factors)})</small>",
               f"as fast as softmax per token, {number(deepest)} tokens into a text (in brackets: lowest and highest of {len(factors)} rounds)"),
        figure(f"{rfa:.2f} <small>against {softmax:.2f}</small>",
               f"nll of RFA-Gate against softmax on held-out text, both from empty memory every {number(segment)} tokens. Lower is better"),
    ])


TERMS = """<dl>
<dt>RFA-Gate</dt><dd>Random Feature Attention with a gate: attention that adds every token to a sum of fixed size, in which older tokens fade at a rate
that the model learns.</dd>
<dt>softmax</dt><dd>Ordinary attention. It keeps the keys and values of all tokens in a cache, and reads all of it for every new token.</dd>
<dt>state</dt><dd>What a model remembers of the text so far: the sums of RFA-Gate, or the key-value cache of softmax. Weights are not part of it.</dd>
<dt>nll</dt><dd>Negative log-likelihood per token in nats, on text that the model was not trained on: how surprised the model is by the next token. Lower is
better; its exponential is the perplexity.</dd>
</dl>"""


def samples(place, prompt):
    cards = []
    for model, name in MODELS.items():
        text = read(place / f"{model}.sample.json")["text"]
        cards.append(card(f'<p class="sample"><span class="quiet">{html.escape(prompt)}</span>{html.escape(text)}</p>', name, model))
    return f'<div class="pair">{"".join(cards)}</div>'


def memory_in_training(options):
    if str(options["stateful"]).lower() == "true":
        return "carried over"
    return f'reset every {number(options["segment"])} tokens'


def training(place):
    curves, rows = [], []
    for model, name in MODELS.items():
        log = log_of(place / model / "log.jsonl")
        summary, options = read(place / f"{model}.train.json"), read(place / model / "trainer" / "options.json")
        memory = memory_in_training(options)
        curves.append(Series(model, f"{name}, training", [(line["step"], line["loss"]) for line in log if "loss" in line]))
        held_out = [(line["step"], line["valid_nll"]) for line in log if "valid_nll" in line]
        curves.append(Series(model, f"{name}, held-out text (memory {memory})", held_out, dashed=True, dots=True))
        rows.append([coloured(model), number(summary["parameters"]), number(summary["step"]), number(summary["tokens"]), memory,
                     f'{summary["seconds"]:.0f} s'])
    points = [point for series in curves for point in series.points]
    drawn = chart("nll during training (nats per token)", curves, linear_axis([x for x, _ in points], number, from_zero=True),
                  linear_axis([y for _, y in points], "{:g}".format), "steps")
    return card(drawn) + table(["model", "trained parameters", "steps", "tokens read", "memory in training", "time"], rows)


class Scores:
    """What raffia eval printed for both models: the same text, read in different ways."""

    def __init__(self, place):
        self.records = {model: read(place / f"{model}.eval.json") for model in MODELS}
        self.tokens = self.records["softmax"][0]["tokens"]
        both = set.intersection(*({r["segment"] for r in records if r["memory"] == "reset"} for records in self.records.values()))
        # A segment as long as the text is one that is never reset.
        self.segments = sorted(segment for segment in both if segment < self.tokens)
        if not self.segments:
            sys.exit(f"demo_page.py: {place}: the models were evaluated with no segment in common")
        self.shortest = self.segments[0]

    def carried(self, model):
        """The record of the whole text read without a reset; None if there is none."""
        return next((r for r in self.records[model] if r["memory"] == "carried" or r["segment"] >= self.tokens), None)

    def reset(self, model, segment):
        return next(r for r in self.records[model] if r["memory"] == "reset" and r["segment"] == segment)

    def nll(self, model, segment):
        return self.reset(model, segment)["nll"]


def in_words(scores):
    """What the table of scores says, for the figures that it has."""
    rfa, softmax = (scores.nll(model, scores.shortest) for model in MODELS)
    better, worse = ("RFA-Gate", "softmax") if rfa < softmax else ("softmax", "RFA-Gate")
    apart = abs(rfa - softmax)
    result = f"{better} is ahead of {worse} by {apart:.3f}" if apart >= SEED_NOISE else f"RFA-Gate and softmax are level, {apart:.3f} apart"
    said = [f"From empty memory every {number(scores.shortest)} tokens, {result} (nats per token)."]
    for model, start in (("rfa_gate", rfa), ("softmax", softmax)):
        carried = scores.carried(model)
        if carried:
            change = carried["nll"] - start
            said.append(f'Memory that is never reset makes {MODELS[model]} {"better" if change < 0 else "worse"} by {abs(change):.3f}.')
    if scores.carried("softmax") and scores.carried("softmax")["nll"] > softmax:
        said.append(f"Softmax was trained on segments of {number(scores.shortest)} tokens, and its rotary positions do not extend to longer texts.")
    said.append(f"One run each with one seed: differences below about {SEED_NOISE} nats are within the noise between seeds.")
    return " ".join(said)


def quality(scores):
    def cells(records):
        return [f'{r["nll"]:.3f}' if r else "not run" for r in records] + [f'{r["bits_per_byte"]:.3f}' if r else "not run" for r in records]

    rows = [[f"empty every {number(segment)} tokens"] + cells([scores.reset(model, segment) for model in MODELS]) for segment in scores.segments]
    rows.append([f"never reset: all {number(scores.tokens)} tokens"] + cells([scores.carried(model) for model in MODELS]))
    heads = ["memory while reading"] + [f"{name}, {unit}" for unit in ("nll", "bits per byte") for name in MODELS.values()]
    return table(heads, rows) + f"<p>{in_words(scores)}</p>"


def decode_charts(decoding):
    def series(name, scale, bands):
        return [Series(model, MODELS[model], [(d, decoding.median(model, d, name) / scale) for d in decoding.depths],
                       [(d, min(decoding.all(model, d, name)) / scale, max(decoding.all(model, d, name)) / scale) for d in decoding.depths] if bands else [],
                       dots=True) for model in MODELS]

    def values(curves):
        return [y for curve in curves for _, y in curve.points] + [high for curve in curves for _, _, high in curve.bands]

    x = log_axis(decoding.depths, number, 4)
    speed, memory = series("tokens_per_second", 1, True), series("state_bytes", 1, False)
    drawn = [chart("Speed (tokens per second)", speed, x, linear_axis(values(speed), number, from_zero=True), "tokens read before"),
             chart("State of a session (bytes)", memory, x, log_axis(values(memory), human_bytes, 10, whole=True), "tokens read before")]
    return f'<div class="pair">{"".join(card(one) for one in drawn)}</div>'


def decode_table(decoding):
    rows = []
    for depth in decoding.depths:
        def cells(name, words):
            return [words(decoding.median(model, depth, name)) for model in MODELS]
        factors = decoding.factors(depth)
        rows.append([f"{number(depth)} tokens"] + cells("tokens_per_second", number) + [f'{statistics.median(factors):.2f} <span class="quiet nowrap">({span(factors, 2)})</span>'] +
                    cells("state_bytes", human_bytes) + cells("peak_rss_bytes", human_bytes))
    heads = ["read before", "RFA-Gate, tokens/s", "softmax, tokens/s", "factor (span)", "RFA-Gate, state", "softmax, cache",
             "RFA-Gate, process", "softmax, process"]
    return table(heads, rows)


def noise(decoding, load):
    """How far the figures can be trusted."""
    rounds, spread, others = len(decoding.rounds), decoding.noise(), load["others"]
    said = (f"Measured in {rounds} rounds; both models and all depths take turns within a round, and the best of {load['repeats']} turns counts. Figures are "
            f"medians of the rounds, bands and brackets go from the lowest to the highest. A factor is the median of the factors of the rounds, so it differs a little from the "
            f"quotient of the two speeds. The same measurement differs by up to {100 * spread:.0f}% between rounds.")
    if others == 0 and spread <= QUIET_SPREAD:
        return f'<p class="quiet">{said}</p>'
    cause = f"{others} other task{'' if others == 1 else 's'} ran on this machine during the measurement" if others else "The rounds differ more than on a quiet machine"
    return f'<p class="note">{said} <strong>{cause}: take the speeds as rough, and run the demo again on a quiet machine.</strong></p>'


def state_files(place):
    found = {}
    for model in MODELS:
        for path in place.glob(f"{model}-*.state.json"):
            info = read(path)
            found.setdefault(info["position"], {})[model] = info["bytes"]
    rows = [[f"{number(position)} tokens"] + [human_bytes(found[position][model]) if model in found[position] else "not saved" for model in MODELS]
            for position in sorted(found)]
    return table(["read before", "RFA-Gate, file", "softmax, file"], rows)


def session(place, prompt):
    first, restored, killed = (text_of(place / f"{name}.txt") for name in ("first", "restored", "killed"))
    # The killed process may have gone further than the restored one.
    shown = len(killed) if restored.startswith(killed) else len(restored)
    further = "" if shown == len(killed) else f", {number(len(killed) - shown)} characters further on"
    info = read(place / "session.json")
    return card(f'<p class="sample"><span class="quiet">{html.escape(prompt)}</span>{html.escape(first)}'
                f'<span class="event">saved: {human_bytes(info["bytes"])}</span><mark>{html.escape(restored[:shown])}</mark>'
                f'<span class="event">kill -9{further}</span>{html.escape(restored[shown:])}</p>')


NEXT = f"""<p>In the directory of the sources:</p>
<pre><code>build/demo/bin/raffia generate out/demo/rfa_gate --interactive
build/demo/bin/raffia train lm --data my.txt --out my-model
scripts/demo.sh my.txt</code></pre>
<p><a href="../../README.md">Overview</a> &middot; <a href="{DOCS}/training.md">Training</a> &middot; <a href="{DOCS}/runtime.md">Running models and sessions</a> &middot;
<a href="{DOCS}/choosing.md">Which attention for which job</a> &middot; <a href="{DOCS}/estimators.md">How far each is from softmax</a> &middot;
<a href="{DOCS}/results.md">Results on WikiText-2 and recall</a> &middot; <a href="{DOCS}/performance.md">Performance</a> &middot; <a href="{DOCS}/cli.md">All commands</a></p>"""


# ---- The page

def head(title):
    style = text_of(Path(__file__).with_name("demo_page.css"))
    return f"""<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Raffia: {html.escape(title)}</title>
<style>
{style}</style>
</head>"""


def introduction(place, title, seconds):
    config = read(place / "rfa_gate" / "config.json")
    counts = " and ".join(f'{number(read(place / f"{model}.train.json")["parameters"])} ({name})' for model, name in MODELS.items())
    took = f" <code>scripts/demo.sh</code> made everything on this page in {seconds // 60} min {seconds % 60} s." if seconds else ""
    return (f'Two small language models, trained on {html.escape(title)}: one with RFA-Gate attention, one with softmax attention. Both have {config["layers"]} layers '
            f'of width {config["width"]}; their trained parameters are {counts}.{took}')


def body(place, title, prompt, seconds):
    decoding, scores, machine = Decoding(place), Scores(place), read(place / "machine.json")
    about = ", ".join(html.escape(str(machine[name])) for name in ("cpu", "isa") if machine.get(name))
    return f"""<main>
<h1>Attention with a memory of constant size</h1>
<p class="quiet">{introduction(place, title, seconds)}</p>
<div class="cards">{headline(decoding, scores)}</div>
{card(TERMS)}

<h2>What they write</h2>
<p>Both models continue words from the held-out text.</p>
{samples(place, prompt)}

<h2>Training</h2>
<p>Both models read the same text in the same steps with the same optimiser. They differ in their attention, and in their memory: RFA-Gate starts each segment
with the state that the segment before it left; softmax starts each segment with an empty cache. The dashed curves therefore differ in memory, too; the next
section compares like with like.</p>
{training(place)}

<h2>Prediction, like for like</h2>
<p>The trained models read the same held-out text of {number(scores.tokens)} tokens, with their memory emptied at the same tokens, and never emptied.</p>
{quality(scores)}

<h2>Speed and memory against length</h2>
<p>Each point is one session on one thread that writes tokens after a text of that length. The state of RFA-Gate stays the same, so a token costs the same: its speed
differs by {100 * decoding.spread_over_depths("rfa_gate"):.0f}% between the fastest and the slowest length. Softmax reads its whole cache for every token: its speed
differs by a factor of {1 + decoding.spread_over_depths("softmax"):.1f}. "Process" is the peak memory of a process with one session, weights included.</p>
{decode_charts(decoding)}
{decode_table(decoding)}
{noise(decoding, read(place / "load.json"))}

<h2>Sessions as files</h2>
<p>A session can be saved to a file. Any process with the same model can continue from it.</p>
{state_files(place)}

<h2>Saved, killed, restored</h2>
<p>One process wrote the first part and saved its session. A second process continued from the file and was ended by <code>kill -9</code>; what it wrote is marked. A third
process continued from the same file. Their texts were compared with a run that was never interrupted: they are identical, byte for byte.</p>
{session(place, prompt)}

<h2>Go on</h2>
{NEXT}

<footer class="quiet">{about}, {machine.get("threads", "?")} threads, raffia {html.escape(str(machine.get("version", "")))}.
Figures come from <code>raffia train</code>, <code>raffia eval</code>, <code>raffia bench decode</code> and <code>raffia state info</code>; their results lie beside this page as JSON.</footer>
</main>"""


def page(place, title, prompt, seconds):
    return f'<!doctype html>\n<html lang="en">\n{head(title)}\n<body>{body(place, title, prompt, seconds)}</body>\n</html>\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("place", type=Path, metavar="DIR")
    parser.add_argument("--title", default="a text")
    parser.add_argument("--prompt", default="")
    parser.add_argument("--seconds", type=int, default=0)
    flags = parser.parse_args()
    (flags.place / "index.html").write_text(page(flags.place, flags.title, flags.prompt, flags.seconds))


if __name__ == "__main__":
    main()
