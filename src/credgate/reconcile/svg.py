"""A timeline as inline SVG: stacked bars, findings on top and never thinner than can be seen."""

from credgate.reconcile.rows import BINS, Timeline
from credgate.reconcile.times import show

_WIDTH, _HEIGHT, _FOOT, _LEFT = 1080, 96, 18, 44
TONES = ("#3d6ea5", "#b9c4cf", "#b3261e")
_LEAST = 3  # pixels of a bar that is not zero


def chart(line: Timeline) -> str:
    """The drawing, with a text for who can't see it."""
    top = max((sum(counts) for counts in line.bins), default=0) or 1
    step = (_WIDTH - _LEFT) // BINS
    bars = []
    for at, counts in enumerate(line.bins):
        bars += _bar(_LEFT + at * step, step - 2, counts, top, show(line.begin + at * line.step))
    fine, open_, bad = (sum(counts[kind] for counts in line.bins) for kind in range(3))
    begin, end = show(line.begin)[:16].replace("T", " "), show(line.begin + BINS * line.step)[:16].replace("T", " ")
    label = f"{fine} in agreement, {open_} expected to be absent or pending, {bad} findings, from {begin} to {end} UTC"
    base = _HEIGHT - _FOOT
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}" font-size="11" fill="#59636e">'
        f'<text x="{_LEFT - 6}" y="10" text-anchor="end">{top}</text>'
        f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end">0</text>'
        f'<line x1="{_LEFT}" x2="{_LEFT + BINS * step}" y1="{base}" y2="{base}" stroke="#d1d9e0"/>{"".join(bars)}'
        f'<text x="{_LEFT}" y="{_HEIGHT - 4}">{begin} UTC</text>'
        f'<text x="{_LEFT + BINS * step}" y="{_HEIGHT - 4}" text-anchor="end">{end} UTC</text></svg>'
    )


def _bar(x: int, width: int, counts: tuple[int, int, int], top: int, when: str) -> list[str]:
    room, base, bars = _HEIGHT - _FOOT - 4, _HEIGHT - _FOOT, []
    for kind, count in enumerate(counts):
        if not count:
            continue
        height = max(_LEAST, count * room // top)
        base = max(0, base - height)
        bars.append(
            f'<rect x="{x}" y="{base}" width="{width}" height="{height}" fill="{TONES[kind]}">'
            f"<title>{when}: {count}</title></rect>"
        )
    return bars
