//! The plot: each cost as a multiple of its own at the smallest size, on two logarithmic axes.

use std::fmt::Write as _;

use crate::{Series, svg};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 270.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 56.0;

/// The ranges of both axes, as powers of ten and of two.
struct Axes {
    x_max: f64,
    y_min: f64,
    y_max: f64,
}

impl Axes {
    fn x(&self, size: f64) -> f64 {
        LEFT + size.log10() / self.x_max * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, ratio: f64) -> f64 {
        TOP + (self.y_max - ratio.log2()) / (self.y_max - self.y_min) * (HEIGHT - TOP - BOTTOM)
    }
}

pub fn draw(all: &[Series]) -> String {
    let relative: Vec<(&str, Vec<(f64, f64)>)> =
        all.iter().map(|one| (one.name, relate(&one.points))).collect();
    let points = || relative.iter().flat_map(|(_, points)| points);
    let x_max = points().map(|(size, _)| size.log10()).fold(1.0, f64::max).ceil();
    let y_min = points().map(|(_, ratio)| ratio.log2()).fold(-1.0, f64::min).floor();
    let y_max = points().map(|(_, ratio)| ratio.log2()).fold(3.0, f64::max).ceil();
    let axes = Axes { x_max, y_min, y_max };
    let mut svg = svg::open(WIDTH, HEIGHT, "Cost against size");
    draw_grid(&mut svg, &axes);
    for (place, (name, points)) in relative.iter().enumerate() {
        draw_series(&mut svg, &axes, place, name, points);
    }
    svg + "</svg>\n"
}

/// Costs as multiples of the first one.
fn relate(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let first = points.first().map_or(1.0, |(_, cost)| cost.max(f64::MIN_POSITIVE));
    points.iter().map(|(size, cost)| (size.max(1.0), (cost / first).max(1e-3))).collect()
}

fn draw_grid(svg: &mut String, axes: &Axes) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for power in 0..=axes.x_max as i32 {
        let x = axes.x(10_f64.powi(power));
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 20.0,
            ["1", "10", "100", "1 k", "10 k", "100 k", "1 M", "10 M"].get(power as usize).unwrap_or(&"")
        );
    }
    for power in axes.y_min as i32..=axes.y_max as i32 {
        let y = axes.y(2_f64.powi(power));
        let class = if power == 0 { "axis" } else { "grid" };
        let _ = writeln!(
            svg,
            "<line class=\"{class}\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">× {}</text>",
            LEFT - 8.0,
            y + 4.0,
            2_f64.powi(power)
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\">Cost, as a multiple of that at the smallest size</text>\
         <text x=\"{right}\" y=\"{}\" text-anchor=\"end\">number of locations, limits, keys or connections</text>",
        TOP - 16.0,
        HEIGHT - 12.0
    );
}

fn draw_series(svg: &mut String, axes: &Axes, place: usize, name: &str, points: &[(f64, f64)]) {
    let colour = svg::COLOURS[place % svg::COLOURS.len()];
    let dots: Vec<(f64, f64)> = points.iter().map(|(size, ratio)| (axes.x(*size), axes.y(*ratio))).collect();
    let path: Vec<String> = dots.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        path.join(" ")
    );
    for (x, y) in dots {
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>");
    }
    let (x, y) = (WIDTH - RIGHT + 20.0, TOP + 10.0 + 24.0 * place as f64);
    let _ = writeln!(
        svg,
        "<rect x=\"{x}\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{colour}\"/><text x=\"{}\" y=\"{y}\">{name}</text>",
        y - 6.0,
        x + 22.0
    );
}
