//! Locations: the time to load them, the memory they take, and the look-up of each request.

use std::hint::black_box;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use http::Method;
use sluicegate_config as config;
use sluicegate_http::request::location::{Arrival, LocationLookup, Locations};
use sluicegate_model::Scheme;

use crate::child::{self, Result};
use crate::report::{Table, median};
use crate::{Bench, Plan, Series, facts, grouped};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One half each.
    ExactAndPrefix,
    /// The same, each with a limit of its own.
    Limited,
    Regex,
    /// Regular expressions that begin alike and end with no literal, so that a request tries them in turn.
    AlikeRegex,
}

const KINDS: [Kind; 4] = [Kind::ExactAndPrefix, Kind::Limited, Kind::Regex, Kind::AlikeRegex];
const SIZES: [usize; 3] = [100, 1_000, 10_000];
const LOOKUPS: usize = 20_000;
const ARRIVAL: Arrival<'static> =
    Arrival { method: &Method::GET, scheme: Scheme::Http, listener: None, values: None };
const START_TIMEOUT: Duration = Duration::from_secs(60);

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::ExactAndPrefix => "exact and prefix",
            Kind::Limited => "the same, each with its own limit",
            Kind::Regex => "regular expressions",
            Kind::AlikeRegex => "regular expressions that all begin alike",
        }
    }

    /// The path as written, and one that it serves.
    fn path(self, number: usize) -> (String, String) {
        match self {
            Kind::ExactAndPrefix | Kind::Limited if number.is_multiple_of(2) => {
                (format!("= /exact/{number}/item"), format!("/exact/{number}/item"))
            }
            Kind::ExactAndPrefix | Kind::Limited => {
                (format!("/prefix/{number}/"), format!("/prefix/{number}/some/file"))
            }
            Kind::Regex => (format!("~ ^/api/{number}/[a-z]+$"), format!("/api/{number}/users")),
            Kind::AlikeRegex => {
                (format!("~ ^/api/[a-z]+/{number}/[a-z]+$"), format!("/api/users/{number}/orders"))
            }
        }
    }

    fn config(self, count: usize, port: u16) -> String {
        let limits = if self == Kind::Limited { ", limits: 10/s" } else { "" };
        let location = |number| {
            format!("  - {{ path: \"{}\", respond: {{ status: 204 }}{limits} }}\n", self.path(number).0)
        };
        let locations: String = (0..count).map(location).collect();
        format!(
            "listen: 127.0.0.1:{port}\nserver: {{ workers: 1 }}\naccess_log: {{ output: none }}\n\
             locations:\n{locations}"
        )
    }
}

/// One start of the program.
struct Started {
    wall_ms: f64,
    cpu_ms: f64,
    kib: f64,
}

pub fn measure(bench: &Bench, plan: &Plan) -> Result<(Table, Vec<Series>)> {
    let mut table =
        Table::new(&["locations", "number", "ms to serving", "CPU ms", "MiB", "bytes each", "look-up ns"]);
    let mut series = Vec::new();
    for kind in KINDS {
        let (mut points, mut least) = (Vec::new(), None);
        for size in SIZES {
            let starts: Vec<Started> =
                (0..plan.rounds).map(|_| start(bench, kind, size)).collect::<Result<_>>()?;
            let middle = |of: fn(&Started) -> f64| median(starts.iter().map(of));
            let kib = middle(|one| one.kib);
            let (least_kib, least_size) = *least.get_or_insert((kib, size));
            let each = (kib - least_kib) * 1024.0 / (size - least_size).max(1) as f64;
            let look_up = look_up_ns(kind, size, plan.rounds)?;
            table.row([
                kind.name().to_owned(),
                grouped(size),
                format!("{:.0}", middle(|one| one.wall_ms)),
                format!("{:.0}", middle(|one| one.cpu_ms)),
                format!("{:.1}", kib / 1024.0),
                if size == least_size { "–".to_owned() } else { grouped(each.max(0.0) as usize) },
                grouped(look_up as usize),
            ]);
            points.push((size as f64, look_up));
        }
        match kind {
            Kind::ExactAndPrefix => series.push(Series { name: "look-up of a location", points }),
            Kind::Regex => series.push(Series { name: "look-up of a regular expression", points }),
            Kind::Limited | Kind::AlikeRegex => {}
        }
    }
    Ok((table, series))
}

fn start(bench: &Bench, kind: Kind, size: usize) -> Result<Started> {
    let port = child::free_port()?;
    let text = kind.config(size, port);
    let began = facts::now();
    let child = bench.start_gateway("locations", &text)?;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        if facts::now() - began > START_TIMEOUT.as_nanos() as u64 {
            return Err(format!("{size} locations did not load within {START_TIMEOUT:?}").into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let wall_ms = (facts::now() - began) as f64 / 1e6;
    let cpu_ms = facts::Cpu::of(child.pid()).total as f64 / 1e6;
    Ok(Started { wall_ms, cpu_ms, kib: facts::resident_kib(child.pid()) as f64 })
}

/// ns per look-up, in process; locations in an order that no prefetcher can learn.
fn look_up_ns(kind: Kind, size: usize, rounds: usize) -> Result<f64> {
    let loaded = config::parse(&kind.config(size, 1), "scaling").map_err(|report| report.to_string())?;
    let locations = Locations::new(&loaded.config.locations);
    let paths: Vec<String> = (0..size).map(|number| kind.path(number).1).collect();
    // The slow ones are asked less often.
    let count = if kind == Kind::AlikeRegex { LOOKUPS / (size / 20) } else { LOOKUPS };
    // At its first match each expression prepares what the worker keeps for it.
    for path in &paths {
        black_box(locations.find_location("a.test", path.as_bytes(), &ARRIVAL));
        if kind == Kind::AlikeRegex && size > 1_000 {
            break;
        }
    }
    let mut number = 1;
    crate::median_of(rounds, || {
        let began = crate::spent_ns();
        for _ in 0..count {
            let path = &paths[crate::keys::next(&mut number, size as u64) as usize];
            let found = locations.find_location("a.test", black_box(path.as_bytes()), &ARRIVAL);
            if !matches!(black_box(found), LocationLookup::Found(_)) {
                return Err(format!("{path} was not found").into());
            }
        }
        Ok((crate::spent_ns() - began) as f64 / count as f64)
    })
}
