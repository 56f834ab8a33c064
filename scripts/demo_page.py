#!/usr/bin/env python3
"""The page of scripts/demo.sh: demo_page.py DIR [--title NAME] [--prompt TEXT] [--seconds N] writes DIR/index.html.

Reads what the commands printed: MODEL/log.jsonl, MODEL.sample.json, MODEL-N.state.json, decode.json, session.json, machine.json and the
texts of the session. Plots are drawn by gnuplot and stand in the page, which needs nothing else.
"""
import argparse
import html
import json
import re
import subprocess
import sys
from pathlib import Path

MODELS = {"rfa_gate": "RFA-Gate", "softmax": "softmax"}
# Of lines in gnuplot, and what stands in their place on the page, so that they suit a light and a dark one.
COLOURS = {"rfa_gate": ("#0000fe", "var(--rfa)"), "softmax": ("#fe0000", "var(--softmax)")}

STYLE = """
:root { --page: #fbfaf7; --card: #ffffff; --text: #22262b; --quiet: #68707a; --line: #e2e0da; --rfa: #0f766e; --softmax: #c2570c; --mark: #d9efe9; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171a; --card: #1c2024; --text: #e4e6e8; --quiet: #98a1ab; --line: #30363c; --rfa: #4fd1bd; --softmax: #f59e5b; --mark: #14403a; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 40px 20px 64px; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 8px; letter-spacing: -0.02em; }
h2 { font-size: 1.25rem; margin: 48px 0 6px; letter-spacing: -0.01em; }
p { margin: 6px 0 14px; max-width: 76ch; }
.quiet { color: var(--quiet); }
.cards, .pair { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(230px, 1fr)); margin: 24px 0; }
.pair { grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); margin: 14px 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px; min-width: 0; }
.card h3 { margin: 0 0 6px; font-size: 0.95rem; }
.figure { font-size: 1.9rem; font-weight: 650; letter-spacing: -0.02em; line-height: 1.2; }
.rfa_gate { color: var(--rfa); }
.softmax { color: var(--softmax); }
.sample { font-family: Georgia, 'Liberation Serif', serif; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
.sample .quiet { font-style: italic; }
mark { background: var(--mark); color: inherit; border-radius: 3px; }
.kill { display: inline-block; font: 600 0.75rem/1.6 system-ui, sans-serif; color: var(--page); background: var(--softmax); border-radius: 4px; padding: 0 6px; white-space: nowrap; }
svg { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 12px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; font-size: 0.85rem; color: var(--quiet); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
code { font-family: ui-monospace, 'Liberation Mono', monospace; font-size: 0.86em; }
footer { margin-top: 56px; border-top: 1px solid var(--line); padding-top: 14px; font-size: 0.88rem; }
"""


def read(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"demo_page.py: {path}: {error}")


def text_of(path):
    return path.read_text(errors="replace")


def log_of(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def human_bytes(count):
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count / size < 1000 else f"{count / size:.0f} {unit}"
    return f"{count} B"


def number(count):
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def plot(curves, title_x, title_y, settings="", size=(480, 330)):
    """An SVG of curves {model: [(x, y), ..]}, or {(model, dash): ..}, in the colours of the page."""
    data, lines = [], []
    for index, (key, points) in enumerate(curves.items()):
        model, label, dash = key
        rows = "\n".join(f"{x} {y}" for x, y in points)
        data.append(f"$data{index} << EOD\n{rows}\nEOD\n")
        marks = "points" if len(points) < 30 else ""
        style = f"with lines{marks} lw 2.2 dt {dash} pt 7 ps 0.5 lc rgb '{COLOURS[model][0]}'"
        lines.append(f"$data{index} using 1:2 {style} title '{label}'")
    script = "".join(data) + f"""
set terminal svg size {size[0]},{size[1]} font 'sans-serif,15' dynamic
set border 3 lw 0.7
set tics nomirror scale 0.5
set grid lw 0.4 dt 3 lc rgb '#888888'
set key top left Left reverse samplen 2 spacing 1.2
set xlabel '{title_x}'
set ylabel '{title_y}'
{settings}
plot {", ".join(lines)}
"""
    done = subprocess.run(["gnuplot"], input=script, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"demo_page.py: gnuplot: {done.stderr.strip()}")
    svg = done.stdout[done.stdout.index("<svg") :]
    for old, new in COLOURS.values():
        red, green, blue = (int(old[i : i + 2], 16) for i in (1, 3, 5))
        svg = re.sub(rf"rgb\(\s*{red},\s*{green},\s*{blue}\)|{old}", new, svg, flags=re.IGNORECASE)
    # Colours of attributes know no variables: as styles they do.
    svg = re.sub(r"""\b(stroke|fill)\s*=\s*(['"])(var\([^)]*\))\2""", r'style="\1:\3"', svg)
    svg = re.sub(r"""\b(color|fill|stroke)\s*=\s*(['"])(black|rgb\(\s*0,\s*0,\s*0\)|#000000)\2""", r'\1="currentColor"', svg)
    # Names within one SVG would meet those of the others.
    svg = re.sub(r"<title>.*?</title>|<desc>.*?</desc>", "", svg, flags=re.DOTALL)
    plot.count += 1
    return re.sub(r"""(\bid=["']|url\(["']?#|href=["']#)""", rf"\1p{plot.count}_", svg)


plot.count = 0


def table(heads, rows, groups=()):
    above = "".join(f'<th colspan="{span}">{name}</th>' for name, span in groups)
    cells = lambda tag, row: "".join(f"<{tag}>{cell}</{tag}>" for cell in row)
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead>{f"<tr>{above}</tr>" if groups else ""}<tr>{cells("th", heads)}</tr></thead><tbody>{body}</tbody></table></div>'


def card(title, body, kind=""):
    return f'<div class="card"><h3 class="{kind}">{title}</h3>{body}</div>'


def figure(value, words, kind="rfa_gate"):
    return f'<div class="card"><div class="figure {kind}">{value}</div><div class="quiet">{words}</div></div>'


def samples(place, prompt):
    cards = []
    for model, name in MODELS.items():
        sample = read(place / f"{model}.sample.json")
        body = f'<p class="sample"><span class="quiet">{html.escape(prompt)}</span>{html.escape(sample["text"])}</p>'
        cards.append(card(name, body, model))
    return f'<div class="pair">{"".join(cards)}</div>'


def training(place):
    logs = {model: log_of(place / model / "log.jsonl") for model in MODELS}
    curves, rows = {}, []
    for model, name in MODELS.items():
        valid = [(line["step"], line["valid_nll"]) for line in logs[model] if "valid_nll" in line]
        learned = [line for line in logs[model] if "loss" in line]
        curves[(model, name, 1)] = [(line["step"], line["loss"]) for line in learned]
        curves[(model, f"{name}, held-out text", 2)] = valid
        last = next(line for line in reversed(logs[model]) if "valid_nll" in line)
        rows.append([f'<span class="{model}">{name}</span>', number(learned[-1]["tokens"]), f'{last["valid_nll"]:.3f}',
                     f'{last["valid_perplexity"]:.1f}', f'{last["valid_bits_per_byte"]:.3f}', f'{learned[-1]["seconds"]:.0f} s'])
    drawn = plot(curves, "steps", "nats per token", "set key top right", size=(980, 380))
    return f'<div class="card">{drawn}</div>' + table(
        ["model", "tokens read", "nll, held-out text", "perplexity", "bits per byte", "training"], rows)


def decoding(records):
    by_model = {model: sorted((r for r in records if r["op"].split(":")[0] == model), key=lambda r: r["depth"]) for model in MODELS}
    axis = "set logscale x 2\nset xrange [200:40000]\nset format x '%.0f'\nset xtics (256, 1024, 4096, 16384, 32768)\n"
    def curve(field, scale):
        return {(model, MODELS[model], 1): [(max(r["depth"], 1), r[field] / scale) for r in by_model[model] if r["depth"] > 0] for model in MODELS}
    speed = plot(curve("tokens_per_second", 1), "tokens read before", "tokens per second", axis + "set yrange [0:*]\nset key bottom left")
    memory = plot(curve("state_bytes", 1e6), "tokens read before", "MB that a session remembers", axis + "set logscale y\nset format y '%g'")
    rows = []
    for rfa, softmax in zip(by_model["rfa_gate"], by_model["softmax"]):
        rows.append([number(rfa["depth"]) if rfa["depth"] else "0", number(rfa["tokens_per_second"]), number(softmax["tokens_per_second"]),
                     f'{softmax["seconds"] / rfa["seconds"]:.2f}', human_bytes(rfa["state_bytes"]), human_bytes(softmax["state_bytes"]),
                     human_bytes(rfa["peak_rss_bytes"]), human_bytes(softmax["peak_rss_bytes"])])
    both = f'<div class="pair"><div class="card">{speed}</div><div class="card">{memory}</div></div>'
    heads = ["tokens before", "RFA-Gate", "softmax", "ratio", "state", "cache", "RFA-Gate", "softmax"]
    groups = [("", 1), ("tokens per second", 3), ("a session remembers", 2), ("memory of the process", 2)]
    return both + table(heads, rows, groups), by_model


def state_files(place):
    found = {}
    for model in MODELS:
        for path in place.glob(f"{model}-*.state.json"):
            info = read(path)
            found.setdefault(info["position"], {})[model] = info["bytes"]
    rows = [[number(position)] + [human_bytes(found[position][model]) if model in found[position] else "-" for model in MODELS]
            for position in sorted(found)]
    return table(["tokens read", "RFA-Gate, file", "softmax, file"], rows)


def session(place, prompt):
    first, restored, killed = (text_of(place / f"{name}.txt") for name in ("first", "restored", "killed"))
    # The killed process may have gone further than the restored one.
    shown = len(killed) if restored.startswith(killed) else len(restored)
    further = "" if shown == len(killed) else f", {number(len(killed) - shown)} characters further on"
    info = read(place / "session.json")
    body = (f'<p class="sample"><span class="quiet">{html.escape(prompt)}</span>{html.escape(first)}'
            f'<span class="kill">saved: {human_bytes(info["bytes"])}</span><mark>{html.escape(restored[:shown])}</mark>'
            f'<span class="kill">kill -9{further}</span>{html.escape(restored[shown:])}</p>')
    return f'<div class="card">{body}</div>'


def page(place, title, prompt, seconds):
    records = read(place / "decode.json")
    decoded, by_model = decoding(records)
    rfa, softmax = by_model["rfa_gate"], by_model["softmax"]
    machine = read(place / "machine.json")
    deepest = min(rfa[-1]["depth"], softmax[-1]["depth"])
    last = {model: next(r for r in by_model[model] if r["depth"] == deepest) for model in MODELS}
    speeds = [r["tokens_per_second"] for r in rfa]
    cards = "".join([
        figure(human_bytes(last["rfa_gate"]["state_bytes"]), "is all that a session remembers, after any number of tokens"),
        figure(f'{last["softmax"]["state_bytes"] / last["rfa_gate"]["state_bytes"]:.0f} x',
               f"is what the cache of softmax takes instead after {number(deepest)} tokens", "softmax"),
        figure(f'{last["softmax"]["seconds"] / last["rfa_gate"]["seconds"]:.1f} x', f"as fast as softmax, {number(deepest)} tokens into a text"),
        figure("identical", "is what a killed session writes when it is restored from its file"),
    ])
    took = f" Everything on this page was made in {seconds // 60} min {seconds % 60} s by <code>scripts/demo.sh</code>." if seconds else ""
    spread = 100 * (max(speeds) / min(speeds) - 1)
    config = read(place / "rfa_gate" / "config.json")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Raffia: {html.escape(title)}</title>
<style>{STYLE}</style>
</head>
<body><main>
<h1>Attention with a memory of constant size</h1>
<p class="quiet">Two language models of {html.escape(title)}, {config["layers"]} layers, {config["width"]} wide, {number(rfa[0]["parameters"])} parameters: one with RFA-Gate attention, one with
softmax attention.{took}</p>
<div class="cards">{cards}</div>

<h2>What they write</h2>
<p>Both go on from words that they were not trained on.</p>
{samples(place, prompt)}

<h2>Training</h2>
<p>The same text, the same steps, the same optimiser. Solid: what is learned from; dashed: text that is held out.</p>
{training(place)}

<h2>Speed and memory against length</h2>
<p>One more token, after so many. RFA-Gate folds the past into a state, so nothing grows (fastest and slowest depth differ by {spread:.0f}%). Softmax reads
all keys and values again for every token. One session, one thread; a process has the weights, too.</p>
{decoded}

<h2>Sessions as files</h2>
<p>A session can be written to a file, and any process with the same model goes on from there.</p>
{state_files(place)}

<h2>Saved, killed, restored</h2>
<p>One process wrote the first part and saved its session. A second went on from the file and was ended by <code>kill -9</code>; a third went on from the same
file. What they wrote was compared byte by byte with a run that was never interrupted: it is identical.</p>
{session(place, prompt)}

<footer class="quiet">{html.escape(str(machine.get("cpu", "")))}, {html.escape(str(machine.get("isa", "")))}, {machine.get("threads", "?")} threads;
raffia {html.escape(str(machine.get("version", "")))}. Figures: <code>raffia bench decode</code>, <code>raffia state info</code>, <code>log.jsonl</code> of the models, all beside this page.</footer>
</main></body>
</html>
"""


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
