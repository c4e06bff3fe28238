//! The screen of `sluicegate top` as an SVG picture, for `make screenshots`.

use std::fmt::Write as _;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::support::*;

const ROWS: u16 = 34;
const COLUMNS: u16 = 104;
/// The size of a cell in pixels, and the border around the screen.
const WIDTH: u16 = 8;
const HEIGHT: u16 = 17;
const BORDER: u16 = 12;
const TEXT: &str = "#d8dee9";
const GROUND: &str = "#14181f";

/// `sluicegate top` on a terminal that `script` makes.
struct Top(Child);

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The picture of the screen after `time`. The program ends with its terminal, so it ends with `script`.
pub fn picture_of_top(gateway: &Gateway, file: &str, time: Duration) -> String {
    let folder = Scratch::new();
    folder.file("gateway.yaml", &format!("admin: {}\n{file}", gateway.admin()));
    let run = format!("stty rows {ROWS} cols {COLUMNS}; exec '{}' top", program().display());
    let mut command = Command::new("script");
    command.args(["--quiet", "--flush", "--return", "--command", &run, "/dev/null"]);
    command.current_dir(folder.path()).env("TERM", "xterm").env_remove("NO_COLOR");
    let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script of bsdutils");
    let mut top = Top(process);
    let mut output = top.0.stdout.take().expect("piped");
    let (sender, pieces) = channel();
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = output.read(&mut piece) {
            if sender.send(piece[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    let mut terminal = vt100::Parser::new(ROWS, COLUMNS, 0);
    let start = Instant::now();
    while let Some(left) = time.checked_sub(start.elapsed()) {
        if let Ok(piece) = pieces.recv_timeout(left) {
            terminal.process(&piece);
        }
    }
    svg(terminal.screen())
}

/// Colour of text, colour behind it, and whether it is bold.
fn look(cell: &vt100::Cell) -> (&'static str, &'static str, bool) {
    let color = |color, default| match color {
        vt100::Color::Idx(1 | 9) => "#ff7b72",
        vt100::Color::Idx(3 | 11) => "#e3b341",
        vt100::Color::Idx(6 | 14) => "#56c7d8",
        _ => default,
    };
    let (text, ground) = (color(cell.fgcolor(), TEXT), color(cell.bgcolor(), GROUND));
    if cell.inverse() { (ground, text, cell.bold()) } else { (text, ground, cell.bold()) }
}

fn svg(screen: &vt100::Screen) -> String {
    let used = screen.rows(0, COLUMNS).enumerate().filter(|(_, row)| !row.trim().is_empty());
    let rows = used.map(|(row, _)| row as u16 + 1).max().unwrap_or(1);
    let (width, height) = (COLUMNS * WIDTH + 2 * BORDER, rows * HEIGHT + 2 * BORDER);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\">\n<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{GROUND}\"/>\n\
         <g font-family=\"monospace\" font-size=\"13\">\n"
    );
    for row in 0..rows {
        let mut column = 0;
        while let Some(cell) = screen.cell(row, column).filter(|_| column < COLUMNS) {
            let (start, (text, ground, bold)) = (column, look(cell));
            let mut words = String::new();
            while let Some(next) = screen.cell(row, column).filter(|next| look(next) == look(cell)) {
                words += if next.has_contents() { next.contents() } else { " " };
                column += 1;
            }
            let (x, y, length) = (BORDER + start * WIDTH, BORDER + row * HEIGHT, (column - start) * WIDTH);
            if ground != GROUND {
                let _ = writeln!(
                    svg,
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{length}\" height=\"{HEIGHT}\" fill=\"{ground}\"/>"
                );
            }
            let weight = if bold { " font-weight=\"bold\"" } else { "" };
            write_words(&mut svg, (x, y + HEIGHT - 4), &words, &format!("fill=\"{text}\"{weight}"));
        }
    }
    svg + "</g>\n</svg>\n"
}

/// Writes the text in pieces without two blanks in a row, which viewers would make one. The length of each piece keeps
/// the columns, whatever monospaced font the viewer has.
fn write_words(svg: &mut String, (left, y): (u16, u16), words: &str, look: &str) {
    let mut column = 0;
    for piece in words.split("  ") {
        let kept = piece.trim();
        let x = left + (column + (piece.len() - piece.trim_start().len()) as u16) * WIDTH;
        let length = kept.chars().count() as u16 * WIDTH;
        let kept = kept.replace('&', "&amp;").replace('<', "&lt;");
        if !kept.is_empty() {
            let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" textLength=\"{length}\" {look}>{kept}</text>");
        }
        column += piece.chars().count() as u16 + 2;
    }
}
