//! The plot: goodput of each proxy in each scenario, median and range over the seeds.

use std::fmt::Write as _;

use crate::peers::Peer;
use crate::report::median;
use crate::scenario::Scenario;
use crate::{Cell, svg};

const WIDTH: f64 = 860.0;
const LEFT: f64 = 110.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 40.0;
const LINE: f64 = 9.0;
const ROOM: f64 = 14.0;

fn x(percent: f64) -> f64 {
    LEFT + percent.clamp(0.0, 110.0) / 110.0 * (WIDTH - LEFT - RIGHT)
}

pub fn draw(scenarios: &[Scenario], cells: &[Cell]) -> String {
    let band = LINE * Peer::ALL.len() as f64 + ROOM;
    let height = TOP + BOTTOM + band * scenarios.len() as f64;
    let mut picture = svg::open(WIDTH, height, "Goodput under overload, in percent of what is possible");
    for percent in [0, 20, 40, 60, 80, 100] {
        let (x, bottom) = (x(f64::from(percent)), height - BOTTOM);
        let class = if percent == 100 { "axis" } else { "grid" };
        let _ = writeln!(
            picture,
            "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{percent} %</text>",
            bottom + 20.0
        );
    }
    let _ = writeln!(
        picture,
        "<text x=\"{LEFT}\" y=\"{}\">Answers within the deadline, of what is possible: median and range</text>",
        TOP - 16.0
    );
    for (place, scenario) in scenarios.iter().enumerate() {
        let top = TOP + band * place as f64;
        let name = format!("{}, × {}", scenario.change.name(), scenario.load);
        let (edge, middle) = (LEFT - 10.0, top + band / 2.0 + 4.0);
        let _ = writeln!(picture, "<text x=\"{edge}\" y=\"{middle:.1}\" text-anchor=\"end\">{name}</text>");
        for (line, peer) in Peer::ALL.into_iter().enumerate() {
            let own = || cells.iter().filter(|cell| cell.peer == peer && cell.scenario == *scenario);
            let all = || own().map(|cell| cell.outcome.goodput);
            let low = all().fold(f64::INFINITY, f64::min);
            let high = all().fold(0.0, f64::max);
            let y = top + ROOM / 2.0 + LINE * (line as f64 + 0.5);
            draw_mark(&mut picture, line, y, [low, median(all()), high].map(x));
        }
    }
    for (line, peer) in Peer::ALL.into_iter().enumerate() {
        let (x, y) = (WIDTH - RIGHT + 24.0, TOP + 10.0 + 24.0 * line as f64);
        draw_mark(&mut picture, line, y - 4.0, [x, x, x]);
        let _ = writeln!(picture, "<text x=\"{}\" y=\"{y}\">{}</text>", x + 14.0, peer.name());
    }
    picture + "</svg>\n"
}

/// A line from the lowest to the highest and a dot at the median.
fn draw_mark(picture: &mut String, line: usize, y: f64, [low, middle, high]: [f64; 3]) {
    let colour = svg::COLOURS[line % svg::COLOURS.len()];
    let _ = writeln!(
        picture,
        "<line x1=\"{low:.1}\" y1=\"{y:.1}\" x2=\"{high:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\
         <circle cx=\"{middle:.1}\" cy=\"{y:.1}\" r=\"3.2\" fill=\"{colour}\"/>"
    );
}
