//! A soak: mixed load with faults, while memory and open files are watched for a slope.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::Plan;
use crate::bench::Bench;
use crate::child::Result;
use crate::facts;
use crate::kinds::Kind;
use crate::report::Table;
use crate::rivals::Rival;

const KINDS: [Kind; 5] = [Kind::H2c, Kind::Tls, Kind::TlsH2, Kind::Close, Kind::Body];
/// The number of clients that leave early after each piece of load.
const LEAVERS: usize = 200;

/// Memory and open files at one moment.
struct Look {
    secs: f64,
    kib: f64,
    files: usize,
}

pub fn measure(bench: &Bench, plan: &Plan) -> Result<Table> {
    let instance = Rival::Sluicegate.start(bench, &KINDS)?;
    let pid = instance.child.pid();
    let (start, mut looks, mut requests, mut failed, mut turn) = (facts::now(), Vec::new(), 0, 0u64, 0);
    let passed = || (facts::now() - start) as f64 / 1e9;
    while passed() < plan.soak.as_secs_f64() {
        let kind = KINDS[turn % KINDS.len()];
        let load = kind.load(bench, instance.port(kind), 2)?;
        requests += load.requests;
        failed += u64::from(load.failed);
        leave(instance.plain_port())?;
        // Requests and rejections go on while the file is reloaded.
        hang_up(pid)?;
        turn += 1;
        looks.push(Look {
            secs: passed(),
            kib: facts::resident_kib(pid) as f64,
            files: fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
        });
    }
    let settled = &looks[looks.len() / 3..];
    let mut table = Table::new(&[
        "requests",
        "pieces of load",
        "with failures",
        "MiB at first",
        "at the end",
        "KiB per hour",
        "files",
        "remarks",
    ]);
    let (first, last) = (settled.first().ok_or("no looks")?, settled.last().ok_or("no looks")?);
    table.row([
        requests.to_string(),
        turn.to_string(),
        failed.to_string(),
        format!("{:.1}", first.kib / 1024.0),
        format!("{:.1}", last.kib / 1024.0),
        format!("{:.0}", slope(settled) * 3600.0),
        format!("{}–{}", first.files, last.files),
        String::new(),
    ]);
    Ok(table)
}

/// Sends heads cut short, bodies that never come, and requests whose responses are not read.
fn leave(port: u16) -> Result<()> {
    let beginnings: [&[u8]; 4] = [
        b"GET / HT",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nabc",
        b"GET / HTTP/1.1\r\nHost: large.test\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x05",
    ];
    for place in 0..LEAVERS {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.write_all(beginnings[place % beginnings.len()])?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn hang_up(pid: u32) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("no pid")?;
    Ok(rustix::process::kill_process(pid, Signal::HUP)?)
}

/// KiB per second, by least squares.
fn slope(looks: &[Look]) -> f64 {
    let count = looks.len() as f64;
    let mean = |of: fn(&Look) -> f64| looks.iter().map(of).sum::<f64>() / count;
    let (secs, kib) = (mean(|look| look.secs), mean(|look| look.kib));
    let covariance: f64 = looks.iter().map(|look| (look.secs - secs) * (look.kib - kib)).sum();
    let variance: f64 = looks.iter().map(|look| (look.secs - secs).powi(2)).sum();
    if variance > 0.0 { covariance / variance } else { 0.0 }
}
