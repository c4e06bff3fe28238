//! The plot: CPU time per request as a multiple of the first proxy's, on a logarithmic axis.

use std::fmt::Write as _;

use crate::contest::Contestant;
use crate::kinds::Kind;
use crate::peer::Program;
use crate::svg;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 200.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 40.0;
/// The height of a proxy's line, and the room between kinds of load.
const LINE: f64 = 8.0;
const ROOM: f64 = 16.0;

/// The range of the axis, as powers of two.
struct Axis {
    least: f64,
    most: f64,
}

impl Axis {
    fn x(&self, ratio: f64) -> f64 {
        LEFT + (ratio.max(f64::MIN_POSITIVE).log2() - self.least) / (self.most - self.least)
            * (WIDTH - LEFT - RIGHT)
    }
}

/// How the proxies are told apart: those of one family share a colour, the second of them is hollow.
struct Mark {
    colour: &'static str,
    hollow: bool,
}

pub fn draw(contestants: &[Contestant], programs: &[Program], kinds: &[Kind]) -> String {
    let spreads: Vec<(&Contestant, [f64; 3])> =
        contestants.iter().filter_map(|one| Some((one, one.against(contestants, 0).spread()?))).collect();
    let powers = || spreads.iter().flat_map(|(_, spread)| spread).map(|ratio| ratio.log2());
    let axis =
        Axis { least: powers().fold(-1.0, f64::min).floor(), most: powers().fold(1.0, f64::max).ceil() };
    let band = LINE * programs.len() as f64 + ROOM;
    let height = TOP + BOTTOM + band * kinds.len() as f64;
    let yardstick = programs.first().map_or("", |program| program.name.as_str());
    let mut picture =
        svg::open(WIDTH, height, &format!("CPU time per request, as a multiple of {yardstick}'s"));
    draw_grid(&mut picture, &axis, height, yardstick);
    for (place, kind) in kinds.iter().enumerate() {
        let y = TOP + band * (place as f64 + 0.5) + 4.0;
        let _ = writeln!(
            picture,
            "<text x=\"{}\" y=\"{y:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 10.0,
            kind.title()
        );
    }
    let marks = marks(programs);
    for (one, spread) in spreads {
        let row = kinds.iter().position(|kind| *kind == one.kind).unwrap_or_default();
        let y = TOP + band * row as f64 + ROOM / 2.0 + LINE * (one.place as f64 + 0.5);
        draw_spread(&mut picture, &marks[one.place], y, spread.map(|ratio| axis.x(ratio)));
    }
    for (place, (program, mark)) in programs.iter().zip(&marks).enumerate() {
        let y = TOP + 10.0 + 24.0 * place as f64;
        let x = WIDTH - RIGHT + 24.0;
        draw_spread(&mut picture, mark, y - 4.0, [x, x, x]);
        let _ = writeln!(picture, "<text x=\"{}\" y=\"{y}\">{}</text>", x + 14.0, program.name);
    }
    picture + "</svg>\n"
}

fn marks(programs: &[Program]) -> Vec<Mark> {
    let mut families = Vec::new();
    let mut mark = |program: &Program| {
        let known = families.iter().position(|peer| *peer == program.peer);
        let place = known.unwrap_or_else(|| {
            families.push(program.peer);
            families.len() - 1
        });
        Mark { colour: svg::COLOURS[place % svg::COLOURS.len()], hollow: known.is_some() }
    };
    programs.iter().map(&mut mark).collect()
}

fn draw_grid(picture: &mut String, axis: &Axis, height: f64, yardstick: &str) {
    let bottom = height - BOTTOM;
    for power in axis.least as i32..=axis.most as i32 {
        let ratio = 2_f64.powi(power);
        let x = axis.x(ratio);
        let class = if power == 0 { "axis" } else { "grid" };
        let _ = writeln!(
            picture,
            "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">× {ratio}</text>",
            bottom + 20.0
        );
    }
    let _ = writeln!(
        picture,
        "<text x=\"{LEFT}\" y=\"{}\">CPU time per request, as a multiple of {yardstick}'s: median and range</text>",
        TOP - 16.0
    );
}

/// A line from the lowest to the highest and a dot at the median.
fn draw_spread(picture: &mut String, mark: &Mark, y: f64, [low, middle, high]: [f64; 3]) {
    let Mark { colour, hollow } = mark;
    let fill = if *hollow { "none" } else { colour };
    let _ = writeln!(
        picture,
        "<line x1=\"{low:.1}\" y1=\"{y:.1}\" x2=\"{high:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\
         <circle cx=\"{middle:.1}\" cy=\"{y:.1}\" r=\"3.2\" fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
    );
}
