"""Line charts for a page of HTML: an SVG that stretches with the page, and labels beside it in HTML, which keep their size.

Colours are classes of the page's style sheet, so that a chart follows the page into its dark theme.
"""
import html
import math
from dataclasses import dataclass, field

WIDTH, HEIGHT = 1000, 500  # units of the drawing; it is stretched to the room there is


@dataclass
class Series:
    kind: str  # class of its colour
    name: str
    points: list  # of (x, y)
    bands: list = field(default_factory=list)  # of (x, lowest y, highest y)
    dashed: bool = False
    dots: bool = False  # with the figures of a point as its tooltip


@dataclass
class Axis:
    low: float
    high: float
    ticks: list  # of (value, label)
    log: bool = False

    def share(self, value):
        """Where the value lies between the ends of the axis, 0 to 1."""
        low, high, value = (math.log(x) for x in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return (value - low) / (high - low)


def linear_axis(values, label, from_zero=False):
    """Round steps, at most six of them."""
    low, high = (0 if from_zero else min(values)), max(values)
    span = (high - low) or abs(high) or 1
    step = 10 ** math.floor(math.log10(span / 5))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    return Axis(first * step, last * step, [(i * step, label(i * step)) for i in range(first, last + 1)])


def log_axis(values, label, factor, whole=False):
    """Ticks `factor` apart: from the least value on, or, if `whole`, at powers of the factor around all values."""
    low, high = min(values), max(values)
    if whole:
        low = factor ** math.floor(math.log(low, factor) + 1e-9)
        high = max(factor ** math.ceil(math.log(high, factor) - 1e-9), low * factor)
    high = high if high > low else low * factor
    count = math.floor(math.log(high / low, factor) + 1e-9)
    return Axis(low, high, [(low * factor**i, label(low * factor**i)) for i in range(count + 1)], log=True)


def _place(x, y, point):
    return f"{WIDTH * x.share(point[0]):.1f} {HEIGHT * (1 - y.share(point[1])):.1f}"


def _band(series, x, y):
    above = [_place(x, y, (at, high)) for at, _, high in series.bands]
    below = [_place(x, y, (at, low)) for at, low, _ in reversed(series.bands)]
    return f'<path class="band {series.kind}" d="M{"L".join(above + below)}Z"/>' if above else ""


def _line(series, x, y):
    dashed = " dashed" if series.dashed else ""
    return f'<path class="line{dashed} {series.kind}" d="M{"L".join(_place(x, y, point) for point in series.points)}"/>'


def _dots(series, x, y):
    """Lines of no length with round ends: circles, however the drawing is stretched."""
    if not series.dots:
        return ""
    dots = []
    for point in series.points:
        said = f"{series.name}: {point[0]:,.0f}, {point[1]:,.4g}"
        dots.append(f'<path class="dot {series.kind}" d="M{_place(x, y, point)}h0"><title>{html.escape(said)}</title></path>')
    return "".join(dots)


def _grid(x, y):
    across = [f"M0 {HEIGHT * (1 - y.share(value)):.1f}H{WIDTH}" for value, _ in y.ticks]
    down = [f"M{WIDTH * x.share(value):.1f} 0V{HEIGHT}" for value, _ in x.ticks]
    return f'<path class="grid" d="{"".join(across + down)}"/>'


def _labels(side, edge, axis, width=""):
    spans = "".join(f'<span style="{edge}:{100 * axis.share(value):.2f}%">{html.escape(label)}</span>' for value, label in axis.ticks)
    return f'<div class="{side}"{width} aria-hidden="true">{spans}</div>'


def chart(title, series, x, y, x_label):
    """title says what the vertical axis shows, and in what unit."""
    legend = "".join(f'<li><i class="key{" dashed" if s.dashed else ""} {s.kind}"></i>{html.escape(s.name)}</li>' for s in series)
    room = f' style="width:{max(len(label) for _, label in y.ticks)}ch"'  # labels lie outside the flow of the page
    drawn = _grid(x, y) + "".join(part(s, x, y) for part in (_band, _line, _dots) for s in series)
    return (f'<figure class="chart"><figcaption>{html.escape(title)}</figcaption><ul class="legend">{legend}</ul>'
            f'<div class="plot">{_labels("ylabels", "bottom", y, room)}'
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{html.escape(title)}">{drawn}</svg>'
            f'{_labels("xlabels", "left", x)}</div><p class="xname">{html.escape(x_label)}</p></figure>')
