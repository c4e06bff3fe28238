//! The style of reports: light and dark, from a telephone to a wide screen.

/// Tables scroll in themselves, so that the page is never wider than its window.
pub const STYLE: &str = "\
:root{--ground:#fff;--text:#1b1f24;--faint:#5b6570;--line:#d8dee4;--admit:#3b7dd8;--wait:#c98a00;--reject:#c8372d}\
@media(prefers-color-scheme:dark){:root{--ground:#14181d;--text:#e6eaee;--faint:#9aa5b1;--line:#333b44;\
--admit:#6aa5f0;--wait:#e0ab3d;--reject:#ef6f66}}\
*{box-sizing:border-box}\
body{margin:0;background:var(--ground);color:var(--text);font:16px/1.5 system-ui,sans-serif}\
main{max-width:72rem;margin:0 auto;padding:1rem}\
h1{font-size:1.5rem;margin:.5rem 0}h2{font-size:1.1rem;margin:1.5rem 0 .5rem}\
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.5rem;margin:1rem 0}\
.figures div{border:1px solid var(--line);border-radius:6px;padding:.5rem .75rem;min-width:0}\
dt{color:var(--faint);font-size:.85rem}dd{margin:0;font-size:1.25rem;overflow-wrap:anywhere}\
small{color:var(--faint);font-size:.8rem;margin-left:.4rem}\
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.25rem .75rem .25rem 0;border-bottom:1px solid var(--line);white-space:nowrap}\
th{color:var(--faint);font-weight:500;font-size:.85rem}.n{text-align:right;font-variant-numeric:tabular-nums}\
td.bar{width:100%;min-width:6rem}.chosen{font-weight:600}\
svg{display:block;width:100%}svg.plot{height:14rem;border-bottom:1px solid var(--line)}svg.bar{height:.8rem}\
.admit{fill:var(--admit)}.wait{fill:var(--wait)}.reject{fill:var(--reject)}\
.curve{fill:none;stroke:var(--admit);stroke-width:2}\
.dot{fill:none;stroke:var(--admit);stroke-width:7;stroke-linecap:round}\
.dot.chosen{stroke:var(--reject);stroke-width:11}\
.axis{display:flex;justify-content:space-between;color:var(--faint);font-size:.8rem;gap:0 1rem;flex-wrap:wrap}\
.legend i{display:inline-block;width:.8rem;height:.8rem;border-radius:2px;margin-right:.3rem}\
i.admit{background:var(--admit)}i.wait{background:var(--wait)}i.reject{background:var(--reject)}\
pre{border:1px solid var(--line);border-radius:6px;padding:.75rem;overflow-x:auto}li{overflow-wrap:anywhere}";
