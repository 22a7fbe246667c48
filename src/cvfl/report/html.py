"""The HTML of a report: one page that needs no network, no script and no font of its own.

Every function takes plain text and escapes it, except where a parameter is called `html`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from string import Template

NOTHING = "–"


@dataclass(frozen=True)
class Card:
    """A figure to see first: what it is, its value, and a line of context."""

    label: str
    value: str
    note: str = ""


def page(title: str, lede: str, html: Sequence[str]) -> str:
    """The whole document."""
    return _PAGE.substitute(title=escape(title), lede=escape(lede), style=_STYLE, body="\n".join(html))


def section(title: str, html: Sequence[str]) -> str:
    """A heading and what belongs to it."""
    return "\n".join([f"<section>\n<h2>{escape(title)}</h2>", *html, "</section>"])


def note(text: str) -> str:
    """A paragraph of explanation."""
    return f'<p class="note">{escape(text)}</p>'


def cards(found: Sequence[Card]) -> str:
    """The cards side by side, or below each other where there is no room."""
    items = (
        f"<div><dt>{escape(card.label)}</dt><dd>{escape(card.value)}<small>{escape(card.note)}</small></dd></div>"
        for card in found
    )
    return f'<dl class="cards">{"".join(items)}</dl>'


def figure(title: str, about: str, html: str) -> str:
    """An SVG with its title and, where there is something to say, a line about it."""
    more = f"<small>{escape(about)}</small>" if about else ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{html}{more}</figure>"


def grid(html: Sequence[str], kind: str = "wide") -> str:
    """Figures in as many columns as fit: `wide` at most two, `narrow` at most three."""
    return f'<div class="grid {kind}">\n' + "\n".join(html) + "\n</div>"


def details(summary: str, html: str, shown: bool = False) -> str:
    """What only some readers want: closed until asked for, unless it is to be `shown`."""
    return f"<details{' open' * shown}><summary>{escape(summary)}</summary>\n{html}\n</details>"


def table(
    label: str, head: Sequence[str], html: Mapping[str, Sequence[Sequence[str]]], kind: str = "numbers", foot: str = ""
) -> str:
    """A table in a box that scrolls by itself; rows come under their heading, and the first cell names the row."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    bodies = "\n".join(_body(heading, rows, len(head)) for heading, rows in html.items())
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}"><table class="{kind}">\n'
        f"<thead><tr>{top}</tr></thead>\n{bodies}\n</table></div>" + (note(foot) if foot else "")
    )


def _body(heading: str, rows: Sequence[Sequence[str]], columns: int) -> str:
    lines = [
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>' for first, *rest in rows
    ]
    if heading:
        lines.insert(
            0, f'<tr class="heading"><th colspan="{columns}" scope="rowgroup"><span>{heading}</span></th></tr>'
        )
    return "<tbody>" + "\n".join(lines) + "</tbody>"


def run_name(label: str, colour: str, about: str = "") -> str:
    """The name of a run behind a spot of the colour that it has in the figures."""
    more = f"<small>{escape(about)}</small>" if about else ""
    return f'<span class="run"><i style="background:{colour}"></i><span>{escape(label)}{more}</span></span>'


_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>$style</style>
</head>
<body>
<main>
<header>
<h1>$title</h1>
<p>$lede</p>
</header>
$body
</main>
</body>
</html>
""")

_STYLE = """
:root {
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif;
  --mono: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
  --page: #f6f7f8; --card: #fff; --ink: #1a1e23; --soft: #59626d; --line: #dfe2e6; --best: #00527f;
}
@media (prefers-color-scheme: dark) {
  :root { --page: #12151a; --card: #1a1e24; --ink: #e6e9ed; --soft: #a1aab5; --line: #313842; --best: #7cc6f2; }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 var(--sans); -webkit-text-size-adjust: 100%;
}
main { max-width: 1160px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { margin: 0; font-size: 30px; line-height: 1.2; letter-spacing: -.015em; overflow-wrap: anywhere; }
h2 { margin: 48px 0 12px; font-size: 20px; line-height: 1.3; }
h3 { margin: 28px 0 0; font-size: 16px; }
header p { margin: 8px 0 0; color: var(--soft); overflow-wrap: anywhere; }
.note { max-width: 76ch; margin: 10px 0 16px; color: var(--soft); font-size: 14.5px; }
small { display: block; color: var(--soft); font-size: 13px; font-weight: 400; line-height: 1.4; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(230px, 1fr)); gap: 14px; margin: 28px 0 0; }
.cards > div, figure, .scroll, details {
  min-width: 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px;
}
.cards > div { padding: 14px 18px 16px; }
dt { color: var(--soft); font-size: 14px; }
dd { margin: 2px 0 0; font-size: 28px; font-weight: 600; line-height: 1.25; font-variant-numeric: tabular-nums; }
dd small { margin-top: 4px; overflow-wrap: anywhere; }
.grid { display: grid; gap: 14px; margin: 14px 0; }
.wide { grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.narrow { grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); }
figure { margin: 0; padding: 14px 16px 12px; break-inside: avoid; }
figcaption { margin-bottom: 10px; font-size: 15px; font-weight: 600; overflow-wrap: anywhere; }
figure small { margin-top: 8px; }
svg.figure { display: block; width: 100%; max-width: 520px; height: auto; margin: 0 auto; }
.key svg.figure { margin: 0; max-width: 420px; }
.scroll { overflow-x: auto; margin: 14px 0; }
table { width: 100%; border-collapse: collapse; font-size: 14.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 8px 14px; border-top: 1px solid var(--line); text-align: right; vertical-align: baseline; }
thead th { border-top: 0; color: var(--soft); font-size: 13px; font-weight: 500; vertical-align: bottom; }
td { white-space: nowrap; }
th[scope=row], th[scope=rowgroup], th:first-child { text-align: left; }
th[scope=row], thead th:first-child { position: sticky; left: 0; background: var(--card); font-weight: 500; }
.numbers th[scope=row] { min-width: 180px; max-width: 340px; overflow-wrap: break-word; }
.heading th { padding-top: 16px; font-weight: 600; }
.heading th > span { position: sticky; left: 14px; display: inline-block; }
.heading ~ tr th[scope=row] { padding-left: 34px; font-weight: 400; }
.texts th, .texts td { padding-top: 5px; padding-bottom: 5px; text-align: left; }
.texts td, .texts tbody th { font-family: var(--mono); font-size: 13px; }
.texts .heading th { font-family: var(--sans); font-size: 14.5px; }
td strong { color: var(--best); font-weight: 700; }
.run { display: flex; gap: 9px; align-items: baseline; }
.run > span { min-width: 0; }
.run i { flex: none; width: 11px; height: 11px; border-radius: 50%; }
.badge {
  display: inline-block; padding: 0 7px; border: 1px solid #d55e00; border-radius: 9px;
  font-size: 12px; font-weight: 500; line-height: 1.45; white-space: nowrap;
}
details { margin: 12px 0; }
summary { padding: 11px 18px; font-weight: 600; cursor: pointer; }
details .note { padding: 0 16px; }
details .scroll { margin: 0; border-width: 1px 0 0; border-radius: 0 0 10px 10px; }
@media (max-width: 600px) {
  main { padding: 24px 14px 40px; }
  h1 { font-size: 25px; }
  h2 { margin-top: 36px; }
  figure { padding: 12px 10px 8px; }
  th, td { padding: 8px 10px; }
  .numbers th[scope=row] { min-width: 138px; max-width: 160px; }
  .cards > div { padding: 11px 14px 13px; }
}
@media print {
  :root { --page: #fff; --card: #fff; --ink: #000; --soft: #444; --line: #bbb; --best: #000; color-scheme: light; }
  body { font-size: 11pt; }
  main { max-width: none; padding: 0; }
  h2 { break-after: avoid; }
  tr, .cards > div { break-inside: avoid; }
  table, thead th, .texts td, .texts tbody th { font-size: 8.5pt; }
  th, td { padding: 3pt 4pt; }
  td { white-space: normal; }
  .texts td { overflow-wrap: anywhere; }
  .cards { grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
  .numbers th[scope=row] { min-width: 0; }
  th[scope=row], thead th:first-child, .heading th > span { position: static; }
  .run i { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .wide { grid-template-columns: 1fr 1fr; }
  .narrow { grid-template-columns: 1fr 1fr 1fr; }
  .scroll { overflow: visible; }
}
"""
