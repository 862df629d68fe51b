"""The style sheet of the page: light and dark, desktop, phone and paper. System fonts; nothing is fetched."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f5f2; --card: #ffffff; --ink: #1c2127; --soft: #59626d; --rule: #e1dfd9; --grid: #ecebe6;
  --blue: #1f6aa5; --blue-soft: #1f6aa52e; --orange: #c04f12; --orange-soft: #c04f1233; --green: #2b7a4b;
  --band: #1c212714; --red: #b3261e; --amber: #8a5a00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --card: #1c2024; --ink: #e8eaed; --soft: #a3acb6; --rule: #32383e; --grid: #2a2f35;
    --blue: #6cb2eb; --blue-soft: #6cb2eb3d; --orange: #f2a05c; --orange-soft: #f2a05c45; --green: #7cc99a;
    --band: #e8eaed1c; --red: #ff8a80; --amber: #f0c05a;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", sans-serif;
}
main, header, footer { max-width: 1120px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 36px; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere; text-wrap: balance; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 0 0 6px; }
h3 { font-size: 1rem; margin: 0 0 4px; overflow-wrap: anywhere; }
p { margin: 0 0 12px; max-width: 46rem; overflow-wrap: anywhere; }
.soft, figcaption, .subtitle { color: var(--soft); }
a { color: var(--blue); }
nav { margin: 16px 0 22px; font-size: .9rem; display: flex; flex-wrap: wrap; gap: 4px 16px; }
section {
  background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 22px 24px; margin: 0 0 20px;
}
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: 14px; margin: 0 0 20px; padding: 0; }
.tile { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 18px; }
.tile .name { color: var(--soft); font-size: .86rem; }
.tile .value { font-size: 1.6rem; font-weight: 600; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile .more { font-size: .86rem; color: var(--soft); overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 22px 30px; }
.charts > * { min-width: 0; }
.three { grid-template-columns: repeat(auto-fit, minmax(min(100%, 310px), 1fr)); }
figure { margin: 0; max-width: 500px; }
figcaption { font-size: .88rem; line-height: 1.45; margin-top: 4px; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; }
.scroll {
  /* A shade at the right says that there is more; it scrolls away with the last column. */
  overflow-x: auto;
  background: linear-gradient(to left, var(--card) 16px, transparent) right / 32px 100% no-repeat local,
    linear-gradient(to left, var(--rule), transparent) right / 16px 100% no-repeat scroll;
}
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .93rem; }
.caption { color: var(--soft); font-size: .88rem; margin-bottom: 4px; }
th, td { padding: 6px 14px 6px 0; text-align: right; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { font-weight: 600; }
thead th { color: var(--soft); font-weight: 500; font-size: .86rem; vertical-align: bottom; white-space: nowrap; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
td { white-space: nowrap; }
td.text { white-space: normal; overflow-wrap: anywhere; }
tbody th { min-width: 6.5em; }
tbody tr:last-child > * { border-bottom: 0; }
.own > * { font-weight: 600; }
.plusminus { display: block; color: var(--soft); font-size: .82em; font-weight: 400; white-space: nowrap; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 5px 22px; margin: 0 0 12px; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
details { margin-top: 8px; font-size: .88rem; }
summary { cursor: pointer; color: var(--blue); padding: 4px 0; }
code { font: .92em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.findings { list-style: none; margin: 10px 0 14px; padding: 0; display: grid; gap: 12px; }
.finding { border-left: 4px solid var(--soft); padding: 2px 0 2px 14px; }
.finding p { margin: 2px 0 0; }
.finding.problem { border-color: var(--red); } .finding.problem .severity { color: var(--red); }
.finding.warning { border-color: var(--amber); } .finding.warning .severity { color: var(--amber); }
.severity { font-size: .78rem; font-weight: 700; letter-spacing: .05em; text-transform: uppercase; color: var(--soft); }
.good { color: var(--green); }
.entry { display: inline-block; }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 50%; }
.key { vertical-align: -.05em; margin-right: .3em; }
.key.blue { background: var(--blue); } .key.orange { background: var(--orange); }
.key.band { background: var(--band); border: 1px solid var(--soft); border-radius: 2px; }
.key.dash { height: 0; width: 1.5em; border-radius: 0; border-top: 2px dashed var(--soft); vertical-align: .25em; }
footer { color: var(--soft); font-size: .86rem; padding-bottom: 36px; }
svg text { fill: var(--ink); font-family: inherit; }
svg .tick { font-size: 12.5px; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .tick.dense { font-size: 11px; }
svg .label { font-size: 13px; }
svg path { fill: none; }
svg .axis { stroke: var(--soft); stroke-width: 1; }
svg .grid { stroke: var(--grid); stroke-width: 1; }
svg .points { stroke: var(--blue); stroke-width: 4.4; stroke-linecap: round; stroke-opacity: .75; }
svg .points.small { stroke-width: 3.4; stroke-opacity: .45; }
svg .points.large { stroke-width: 8; stroke-opacity: 1; }
svg .points.second { stroke: var(--orange); stroke-opacity: .9; }
svg .line { stroke: var(--blue); stroke-width: 2.2; stroke-linejoin: round; }
svg .line.second { stroke: var(--orange); }
svg .line.many { stroke-width: 1.6; stroke-opacity: .8; }
svg .line.reference { stroke: var(--soft); stroke-width: 1.4; stroke-dasharray: 5 4; }
svg .error { stroke: var(--blue); stroke-width: 1.3; stroke-opacity: .3; }
svg .error.second { stroke: var(--orange); stroke-opacity: .55; }
svg .error.strong { stroke: var(--ink); stroke-width: 1.6; stroke-opacity: .8; }
svg .error.mean { stroke: var(--orange); stroke-width: 2; stroke-opacity: .9; }
svg .bar { fill: var(--blue); fill-opacity: .8; }
svg .band { fill: var(--band); }
@media (min-width: 900px) { dl { grid-template-columns: max-content 1fr max-content 1fr; } }
@media (max-width: 760px) {
  body { font-size: 15px; }
  main, header, footer { padding: 0 12px; }
  header { padding-top: 22px; }
  h1 { font-size: 1.5rem; }
  section { padding: 16px 14px; }
  .tiles { grid-template-columns: repeat(2, 1fr); gap: 10px; }
  .tile { padding: 10px 12px; }
  .tile .value { font-size: 1.3rem; }
  dl { grid-template-columns: 36% 1fr; gap: 5px 12px; }
  th, td { padding-right: 12px; }
}
@media print {
  :root {
    color-scheme: light;
    --page: #fff; --card: #fff; --ink: #000; --soft: #444; --rule: #bbb; --grid: #ddd; --blue: #1f6aa5;
    --orange: #c04f12; --band: #00000018; --red: #b3261e; --amber: #8a5a00; --green: #2b7a4b;
  }
  body { font-size: 10.5pt; }
  nav, details { display: none; }
  section { border: 0; padding: 0; margin-bottom: 14pt; }
  h2 { break-after: avoid; }
  figure, .finding, .tile, tr, .charts > div { break-inside: avoid; }
  .charts { grid-template-columns: 1fr 1fr; }
  .three { grid-template-columns: 1fr 1fr 1fr; }
  .stacked { grid-template-columns: 1fr; }
  .scroll { overflow: visible; background: none; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""
