"""The timeline as one HTML page that needs nothing else: a bar per process and phase, and the moments as a table."""

from collections.abc import Sequence
from html import escape
from typing import Final

from bireme.cli.recoveries import STEPS, Bar, Recovery

_COLOURS: Final = {"Down": "#c0392b", "Ending": "#d68910", "Loading": "#2471a3", "Forming": "#7d3c98"}
_WIDTH: Final = 760
_LABEL: Final = 130
_ROW: Final = 24

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }}
h2 {{ font-size: 1.05rem; margin-top: 2.5rem }}
table {{ border-collapse: collapse; margin: .5rem 0 }}
td, th {{ padding: .1rem .9rem .1rem 0; text-align: left; vertical-align: top }}
td.time {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }}
svg {{ max-width: 100% }} svg text {{ font: 12px system-ui, sans-serif; fill: currentColor }}
.key span {{ display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em }}
</style></head><body><h1>{title}</h1>
<p class="key">{key}</p>
{body}
</body></html>
"""


def page(name: str, found: Sequence[Recovery]) -> str:
    """The page of these recoveries."""
    key = " ".join(f'<span style="background:{colour}"></span>{phase}' for phase, colour in _COLOURS.items())
    body = "\n".join(map(_section, found)) or "<p>nothing happened yet</p>"
    return _PAGE.format(title=escape(f"Recoveries of {name}"), key=key, body=body)


def _section(recovery: Recovery) -> str:
    steps = recovery.steps()
    shown = [step for step in STEPS if step in steps]
    heads = "".join(f"<th>{step}</th>" for step in shown)
    cells = "".join(f"<td>{steps[step][0]:.2f}–{steps[step][1]:.2f} s</td>" for step in shown)
    rows = "".join(
        f'<tr><td class="time">{moment.after_s:.3f} s</td><td>{moment.step}</td><td>{escape(moment.text)}</td></tr>'
        for moment in recovery.moments
    )
    return (
        f"<h2>{escape(recovery.title)}</h2><table><tr>{heads}</tr><tr>{cells}</tr></table>"
        f"{_picture(recovery)}<details open><summary>every moment</summary><table>{rows}</table></details>"
    )


def _picture(recovery: Recovery) -> str:
    rows = sorted({bar.row for bar in recovery.bars})
    if not rows:
        return ""
    end = max([bar.to_s for bar in recovery.bars] + [recovery.took_s or 0.0, 0.001])
    height = _ROW * len(rows) + _ROW
    labels = "".join(f'<text x="0" y="{_ROW * i + 16}">{escape(row)}</text>' for i, row in enumerate(rows))
    bars = "".join(_bar(bar, rows.index(bar.row), end) for bar in recovery.bars)
    axis = (
        f'<text x="{_LABEL}" y="{height - 6}">0 s</text>'
        f'<text x="{_WIDTH}" y="{height - 6}" text-anchor="end">{end:.2f} s</text>'
    )
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{labels}{bars}{axis}</svg>'


def _bar(bar: Bar, row: int, end: float) -> str:
    scale = (_WIDTH - _LABEL) / end
    x, width = _LABEL + bar.from_s * scale, max((bar.to_s - bar.from_s) * scale, 2.0)
    colour = _COLOURS.get(bar.phase, "#7f8c8d")
    tip = escape(f"{bar.row}: {bar.phase} {bar.from_s:.3f}–{bar.to_s:.3f} s")
    return (
        f'<rect x="{x:.1f}" y="{_ROW * row + 3}" width="{width:.1f}" height="{_ROW - 6}" fill="{colour}">'
        f"<title>{tip}</title></rect>"
    )
