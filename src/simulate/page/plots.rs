//! Plots as inline SVG. Shapes stretch to the width of the page; texts are HTML beside them, so that they do not.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use crate::operate::text_table::show_count;
use crate::simulate::recommend::recommendation::CurvePoint;
use crate::simulate::replay::timeline::{RequestTimeline, TimePart};
use sluicegate_base::escape;

/// One bar of a distribution.
pub(super) struct BarRow {
    pub label: String,
    pub value: u64,
    /// The class of its colour.
    pub color: &'static str,
}

/// The text with all characters escaped that mean something in HTML, in elements and in quoted attributes.
pub(super) fn escape_html(text: &str) -> String {
    // A control character shows nothing and may confuse a reader who copies it.
    let text = text.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}");
    let mut out = Vec::with_capacity(text.len());
    escape::escape_html(&mut out, text.as_bytes());
    String::from_utf8_lossy(&out).into_owned()
}

/// Requests over time, stacked: admitted, waited, rejected.
pub(super) fn draw_timeline(out: &mut String, timeline: &RequestTimeline) {
    let parts = &timeline.parts;
    let highest = parts.iter().map(|part| part.requests).max().unwrap_or(0).max(1) as f64;
    let _ = write!(
        out,
        "<svg class=plot viewBox=\"0 0 {} 100\" preserveAspectRatio=none role=img aria-label=\"requests over time\">",
        parts.len().max(1)
    );
    for (place, TimePart { requests, waited, rejected }) in parts.iter().enumerate() {
        let admitted = requests.saturating_sub(waited + rejected);
        let mut base = 100.0;
        for (count, color) in [(admitted, "admit"), (*waited, "wait"), (*rejected, "reject")] {
            if count > 0 {
                let height = count as f64 / highest * 100.0;
                base -= height;
                let _ = write!(
                    out,
                    "<rect class={color} x={place} y={base:.2} width=.9 \
                     height={height:.2}><title>{count}</title></rect>"
                );
            }
        }
    }
    let _ = write!(
        out,
        "</svg><div class=axis><span>{}</span><span>{} s each, {} requests at most</span><span>{}</span></div>\
         <div class=\"axis legend\"><span><i class=admit></i>admitted</span><span><i class=wait></i>waited</span>\
         <span><i class=reject></i>rejected</span></div>",
        write_time(timeline.start_s),
        show_count(timeline.part_s),
        show_count(highest as u64),
        write_time(timeline.end_s())
    );
}

/// The time of the requests, in words.
pub(super) fn describe_time(timeline: &RequestTimeline) -> String {
    format!("requests from {} to {}", write_time(timeline.start_s), write_time(timeline.end_s()))
}

/// A distribution: a bar for each row.
pub(super) fn draw_bars(out: &mut String, rows: &[BarRow]) {
    let highest = rows.iter().map(|row| row.value).max().unwrap_or(0).max(1) as f64;
    out.push_str("<div class=scroll><table>");
    for BarRow { label, value, color } in rows {
        let _ = write!(out, "<tr><td>{}<td class=n>{}<td class=bar>", escape_html(label), show_count(*value));
        draw_bar(out, *value as f64 / highest, color);
    }
    out.push_str("</table></div>");
}

/// One bar; `share` is from 0 to 1.
pub(super) fn draw_bar(out: &mut String, share: f64, color: &str) {
    let _ = write!(
        out,
        "<svg class=bar viewBox=\"0 0 100 1\" preserveAspectRatio=none aria-hidden=true>\
         <rect class={color} width={:.2} \
         height=1></rect></svg>",
        share.clamp(0.0, 1.0) * 100.0
    );
}

/// The smallest burst by rate, both on logarithmic scales, with the chosen point.
pub(super) fn draw_curve(out: &mut String, curve: &[CurvePoint], chosen: &str) {
    let bounds = |value: &dyn Fn(&CurvePoint) -> f64| {
        let all = curve.iter().map(value);
        let (least, most) =
            all.fold((f64::MAX, f64::MIN), |(least, most), one| (least.min(one), most.max(one)));
        (least, (most - least).max(1e-9))
    };
    let x = |point: &CurvePoint| point.per_s.ln();
    let y = |point: &CurvePoint| (point.burst as f64).ln();
    let ((left, width), (bottom, height)) = (bounds(&x), bounds(&y));
    let place = |point: &CurvePoint| {
        (20.0 + (x(point) - left) / width * 960.0, 280.0 - (y(point) - bottom) / height * 260.0)
    };
    let mut sorted: Vec<&CurvePoint> = curve.iter().collect();
    sorted.sort_by(|one, other| one.per_s.total_cmp(&other.per_s));
    out.push_str(
        "<svg class=plot viewBox=\"0 0 1000 300\" preserveAspectRatio=none role=img \
         aria-label=\"smallest burst by rate\">\
         <polyline class=curve vector-effect=non-scaling-stroke points=\"",
    );
    for point in &sorted {
        let (x, y) = place(point);
        let _ = write!(out, "{x:.1},{y:.1} ");
    }
    out.push_str("\"/>");
    for point in sorted {
        let (x, y) = place(point);
        let class = if point.rate == chosen { "\"dot chosen\"" } else { "dot" };
        let _ = write!(
            out,
            "<path class={class} vector-effect=non-scaling-stroke \
             d=\"M{x:.1} {y:.1}h.01\"><title>{}: {}</title></path>",
            escape_html(&point.rate),
            point.burst
        );
    }
    out.push_str(
        "</svg><div class=axis><span>slower</span><span>rate, logarithmic; upwards the burst</span>\
         <span>faster</span></div>",
    );
}

fn write_time(second: u64) -> String {
    let at = UNIX_EPOCH + Duration::from_secs(second.min(253_402_300_799));
    humantime::format_rfc3339_seconds(at).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_log_becomes_markup() {
        assert_eq!(escape_html("<script>'\"&\u{1}"), "&lt;script&gt;&#39;&quot;&amp;\u{fffd}");
        let mut out = String::new();
        draw_bars(&mut out, &[BarRow { label: "<b>".to_owned(), value: 1, color: "admit" }]);
        assert!(out.contains("&lt;b&gt;") && !out.contains("<b>"), "{out}");
    }
}
