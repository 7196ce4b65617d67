"""A staircase as a picture: what is least up to each place, in SVG for pages and in characters for a terminal."""

from html import escape

from ._blocks import Plot

_WIDTH, _HEIGHT = 640, 280  # of the picture, and what its words take of that
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 90, 30, 46
_COLUMNS, _LINES = 56, 13  # characters
_ROOM = 0.08  # of the range of heights that is left above and below


def svg(plot: Plot) -> str:
    """In the colours of what is around it."""
    inner, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    places = [(_LEFT + x * inner, _TOP + (1 - y) * tall) for x, y in _shares(plot)]
    base, end = _TOP + tall, _LEFT + inner
    steps = (f"H{x:.1f}V{y:.1f}" for x, y in places[1:])
    line = f"M{places[0][0]:.1f},{places[0][1]:.1f}{''.join(steps)}H{end + 8}"
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="var(--part-compute, currentColor)">'
        f"<title>{escape(f'{point.across}, {point.up}')}</title></circle>"
        f'<text x="{x + 6:.1f}" y="{y - 8:.1f}" font-size="12">{escape(point.up)}</text>'
        f'<line x1="{x:.1f}" y1="{base}" x2="{x:.1f}" y2="{base + 5}" stroke="currentColor"/>'
        f'<text x="{x:.1f}" y="{base + 19}" font-size="12" text-anchor="middle">{escape(point.across)}</text>'
        for (x, y), point in zip(places, plot.points, strict=True)
    )
    return (
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" fill="currentColor" '
        f'style="max-width: {_WIDTH}px; width: 100%">'
        f'<path d="M{_LEFT},{_TOP - 8}V{base}H{end + 8}" fill="none" stroke="currentColor" opacity="0.4"/>'
        f'<path d="{line}" fill="none" stroke="var(--part-compute, currentColor)" stroke-width="2"/>{dots}'
        f'<text x="{_LEFT - 10}" y="{_TOP - 14}" font-size="12" opacity="0.7">{escape(plot.up)}</text>'
        f'<text x="{end}" y="{_HEIGHT - 6}" font-size="12" text-anchor="end" opacity="0.7">{escape(plot.across)}</text>'
        "</svg>"
    )


def lines(plot: Plot) -> list[str]:
    """In characters: a star for each point, and what is least to the right of it."""
    grid = [[" "] * _COLUMNS for _ in range(_LINES)]
    places = [(round(x * (_COLUMNS - 1)), round((1 - y) * (_LINES - 1))) for x, y in _shares(plot)]
    for (x, y), end in zip(places, [x for x, _ in places[1:]] + [_COLUMNS], strict=True):
        for column in range(x, end):
            grid[y][column] = "-"
    for x, y in places:
        grid[y][x] = "*"
    words = {y: point.up for (_, y), point in zip(places, plot.points, strict=True)}
    wide = max(map(len, words.values()))
    drawn = [f"{words.get(y, ''):>{wide}} |{''.join(row)}" for y, row in enumerate(grid)]
    first, last = plot.points[0].across, plot.points[-1].across
    below = first if first == last else f"{first:<{_COLUMNS - len(last)}}{last}"
    return [*drawn, f"{'':>{wide}} +{'-' * _COLUMNS}", f"{'':>{wide}}  {below}"]


def _shares(plot: Plot) -> list[tuple[float, float]]:
    """Each point's place from left to right and from bottom to top, as shares of the picture."""
    across, up = [point.x for point in plot.points], [point.y for point in plot.points]
    wide, low, tall = max(across) - min(across) or 1.0, min(up), max(up) - min(up) or 1.0
    return [
        ((x - min(across)) / wide, _ROOM + (1 - 2 * _ROOM) * (y - low) / tall)
        for x, y in zip(across, up, strict=True)
    ]
