//! Reports as one self-contained page: no script, no font, no request to anywhere; plots are inline SVG.

mod plots;

use std::fmt::Write as _;

use crate::operate::text_table::show_count;
use crate::simulate::recommend::recommendation::{CurvePoint, Recommendation};
use crate::simulate::replay::report::{ChangedKey, ConfigChange, KeyLine, LimitLine, ReplayReport, share_of};
use crate::simulate::replay::tally::KeyTally;
use plots::{BarRow, escape_html};

/// The page of a replay; `files` names the logs and the configurations.
pub fn render_replay(report: &ReplayReport, files: &str) -> String {
    let mut out = begin_page("Replay");
    // Writing into a String cannot fail.
    let _ = write!(out, "<p>{}; {}</p>", escape_html(files), plots::describe_time(&report.timeline));
    let rejected = match &report.range {
        Some(range) => format!("{} to {}", show_count(range.rejected[0]), show_count(range.rejected[1])),
        None => show_count(report.rejected),
    };
    let share = |part: u64| format!("{:.2}%", share_of(part, report.requests) * 100.0);
    write_figures(
        &mut out,
        &[
            ("requests", show_count(report.requests), String::new()),
            ("admitted", show_count(report.admitted), share(report.admitted)),
            ("waited", show_count(report.waited), share(report.waited)),
            ("rejected", rejected, share(report.rejected)),
            ("rejected in the log", show_count(report.logged.rejected), share(report.logged.rejected)),
        ],
    );
    out.push_str("<section><h2>Requests over time</h2>");
    plots::draw_timeline(&mut out, &report.timeline);
    out.push_str("</section>");
    write_limits(&mut out, &report.limit_lines);
    write_keys(&mut out, &report.keys);
    let shares = report.key_shares.iter().map(|class| BarRow {
        label: if class.up_to == 0 { "none rejected".to_owned() } else { format!("up to {}%", class.up_to) },
        value: class.keys,
        color: if class.up_to == 0 { "admit" } else { "reject" },
    });
    write_bars(&mut out, "Keys by the rejected share of their requests", shares.collect());
    let waits = report.waits.iter().map(|class| BarRow {
        label: class.up_to_ms.map_or_else(|| "longer".to_owned(), |ms| format!("up to {ms} ms")),
        value: class.requests,
        color: "wait",
    });
    write_bars(&mut out, "Waits", waits.collect());
    if let Some(change) = &report.against {
        write_change(&mut out, change);
    }
    let mut notes = report.notes.clone();
    notes.extend(report.log.describe_unreadable());
    end_page(out, &notes)
}

/// The page of a recommendation.
pub fn render_recommendation(recommendation: &Recommendation) -> String {
    let Recommendation { key, spare, keys, spared, requests, curve, suggested, .. } = recommendation;
    let mut out = begin_page("Recommended limit");
    write_figures(
        &mut out,
        &[
            ("requests", show_count(*requests), String::new()),
            ("keys", show_count(*keys), key.clone()),
            ("spared keys", show_count(*spared), spare.clone()),
            ("suggested rate", suggested.rate.clone(), String::new()),
            ("burst", show_count(suggested.burst), String::new()),
        ],
    );
    let _ = write!(out, "<p>{}.</p>", escape_html(&recommendation.describe_heaviest()));
    out.push_str("<section><h2>Smallest burst by rate</h2>");
    plots::draw_curve(&mut out, curve, &suggested.rate);
    out.push_str(
        "<div class=scroll><table><tr><th>rate<th class=n>requests per second<th class=n>smallest burst",
    );
    for CurvePoint { rate, burst, per_s } in curve {
        let class = if *rate == suggested.rate { " class=chosen" } else { "" };
        // Writing into a String cannot fail.
        let (rate, burst) = (escape_html(rate), show_count(*burst));
        let _ = write!(out, "<tr{class}><td>{rate}<td class=n>{per_s:.4}<td class=n>{burst}");
    }
    out.push_str("</table></div></section>");
    if let Some(heavy) = &recommendation.ten_times {
        let [sends, passes] = [heavy.sends, heavy.passes].map(show_count);
        let _ = write!(
            out,
            "<section><h2>Ten times the heaviest spared client</h2><p>It sends {sends} requests in {:.0} s; at most \
             {passes} get through the suggested limit.</p></section>",
            heavy.seconds
        );
    }
    let _ =
        write!(out, "<section><h2>To paste</h2><pre>{}</pre></section>", escape_html(&recommendation.paste));
    end_page(out, &recommendation.notes)
}

fn begin_page(title: &str) -> String {
    format!(
        "<!doctype html><html lang=en><head><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\
         <meta name=color-scheme content=\"light dark\">\
         <meta http-equiv=Content-Security-Policy \
         content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\
         <link rel=icon href=\"data:,\"><title>{title} - Sluicegate</title><style>{STYLE}</style></head>\
         <body><main><h1>{title}</h1>"
    )
}

fn end_page(mut out: String, notes: &[String]) -> String {
    if !notes.is_empty() {
        out.push_str("<section><h2>Notes</h2><ul>");
        for note in notes {
            let _ = write!(out, "<li>{}", escape_html(note));
        }
        out.push_str("</ul></section>");
    }
    out.push_str("</main></body></html>\n");
    out
}

/// Numbers with their names, and a remark each.
fn write_figures(out: &mut String, figures: &[(&str, String, String)]) {
    out.push_str("<dl class=figures>");
    for (name, value, remark) in figures {
        let (value, remark) = (escape_html(value), escape_html(remark));
        let _ = write!(out, "<div><dt>{name}<dd>{value}<small>{remark}</small></div>");
    }
    out.push_str("</dl>");
}

fn write_limits(out: &mut String, limits: &[LimitLine]) {
    out.push_str(
        "<section><h2>Limits</h2><div class=scroll><table><tr><th>limit<th class=n>requests<th class=n>admitted\
         <th class=n>waited<th class=n>rejected<th class=n>keys<th class=n>keys rejected",
    );
    for line in limits {
        let name = escape_html(&line.name);
        if let Some(reason) = &line.not_judged {
            let _ = write!(out, "<tr><td>{name}<td colspan=6>not judged: {}", escape_html(reason));
            continue;
        }
        let mode = line.mode().map(|mode| format!(" <small>{mode}</small>")).unwrap_or_default();
        let KeyTally { requests, admitted, waited, rejected, .. } = line.counts;
        let _ = write!(out, "<tr><td>{name}{mode}");
        for number in [requests, admitted, waited, rejected, line.keys as u64, line.keys_rejected as u64] {
            let _ = write!(out, "<td class=n>{}", show_count(number));
        }
    }
    out.push_str("</table></div></section>");
}

fn write_keys(out: &mut String, keys: &[KeyLine]) {
    out.push_str("<section><h2>Keys that are hit first</h2>");
    if keys.is_empty() {
        out.push_str("<p>No key waits or is rejected.</p></section>");
        return;
    }
    out.push_str(
        "<div class=scroll><table><tr><th>key<th>limit<th class=n>requests<th class=n>waited<th class=n>rejected\
         <th class=n>share<th>",
    );
    for KeyLine { limit, key, requests, waited, rejected, share } in keys {
        let (limit, key) = (escape_html(limit), escape_html(key));
        let _ = write!(out, "<tr><td>{key}<td>{limit}");
        let [requests, waited, rejected] = [*requests, *waited, *rejected].map(show_count);
        let _ = write!(out, "<td class=n>{requests}<td class=n>{waited}<td class=n>{rejected}");
        let _ = write!(out, "<td class=n>{:.1}%<td class=bar>", share * 100.0);
        plots::draw_bar(out, *share, "reject");
    }
    out.push_str("</table></div></section>");
}

/// A distribution; nothing if it is empty.
fn write_bars(out: &mut String, title: &str, rows: Vec<BarRow>) {
    if rows.iter().any(|row| row.value > 0) {
        let _ = write!(out, "<section><h2>{title}</h2>");
        plots::draw_bars(out, &rows);
        out.push_str("</section>");
    }
}

fn write_change(out: &mut String, change: &ConfigChange) {
    let ConfigChange { newly_rejected, newly_admitted, newly_rejected_by, newly_admitted_by } = change;
    let [rejected, admitted] = [*newly_rejected, *newly_admitted].map(show_count);
    let _ = write!(
        out,
        "<section><h2>Against the other file</h2><p>{rejected} requests are newly rejected, {admitted} newly \
         admitted.</p>"
    );
    if newly_rejected_by.is_empty() && newly_admitted_by.is_empty() {
        return out.push_str("</section>");
    }
    out.push_str("<div class=scroll><table><tr><th>change<th>limit<th>key<th class=n>requests");
    for (word, changed) in [("newly rejected", newly_rejected_by), ("newly admitted", newly_admitted_by)] {
        for ChangedKey { limit, key, requests } in changed {
            let key = if key.is_empty() { "all" } else { key };
            let (limit, key) = (escape_html(limit), escape_html(key));
            let _ = write!(out, "<tr><td>{word}<td>{limit}<td>{key}<td class=n>{}", show_count(*requests));
        }
    }
    out.push_str("</table></div></section>");
}

/// Tables scroll in themselves, so that the page is never wider than its window.
const STYLE: &str = "\
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
