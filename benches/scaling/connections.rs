//! Open connections: their memory, and the cost of requests on others while they stand unused.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use crate::child::{self, Child, Result};
use crate::report::Table;
use crate::{Bench, Plan, Series, facts, grouped, median_of};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: bench.test\r\nUser-Agent: scaling\r\nAccept: */*\r\n\r\n";
const SIZES: [usize; 4] = [100, 1_000, 5_000, 20_000];
const QUICK_SIZES: [usize; 2] = [100, 1_000];
/// Connections with requests.
const BUSY: usize = 16;
/// Each address has ports for this many; closed ones stay reserved for a minute.
const PER_ADDRESS: usize = 10_000;
const ADDRESSES: u8 = 3;
/// Descriptors of the gateway for a client, and those it keeps for itself.
const PER_CLIENT: usize = 2;
const RESERVED: usize = 300;

pub fn measure(bench: &Bench, plan: &Plan) -> Result<(Table, Vec<Series>)> {
    let mut table = Table::new(&["open", "CPU µs per request", "bytes each", "remarks"]);
    let mut points = Vec::new();
    let fit = (child::raise_open_files() as usize).saturating_sub(RESERVED) / PER_CLIENT - BUSY;
    for wanted in if plan.quick { &QUICK_SIZES[..] } else { &SIZES } {
        let open = fit.min(*wanted);
        let port = child::free_port()?;
        let mut gateway = start(bench, port)?;
        gateway.wait_port(port, Duration::from_secs(10))?;
        let mut busy = connect(port, BUSY, 0)?;
        exchange(&mut busy, 2_000)?;
        let before = facts::resident_kib(gateway.pid());
        let idle = connect(port, open, 1)?;
        std::thread::sleep(Duration::from_secs(2));
        let kib = facts::resident_kib(gateway.pid()).saturating_sub(before);
        let requests = if plan.quick { 4_000 } else { 40_000 };
        let us = median_of(plan.rounds, || {
            let before = facts::Cpu::of(gateway.pid());
            let answered = exchange(&mut busy, requests)?;
            Ok(facts::Cpu::of(gateway.pid()).since(before).total as f64 / 1e3 / answered as f64)
        })?;
        drop(idle);
        let remark = if open < *wanted { "as many as the descriptor limit allows" } else { "" };
        table.row([
            grouped(open),
            format!("{us:.2}"),
            grouped(kib as usize * 1024 / open),
            remark.to_owned(),
        ]);
        points.push((open as f64, us));
    }
    Ok((table, vec![Series { name: "request beside open connections", points }]))
}

fn start(bench: &Bench, port: u16) -> Result<Child> {
    let addresses: Vec<String> = (1..=ADDRESSES).map(|host| format!("\"127.0.0.{host}:{port}\"")).collect();
    let text = format!(
        "listen: [{}]\nserver: {{ workers: 1, max_connections: 100000, timeouts: {{ idle: 1h }} }}\n\
         access_log: {{ output: none }}\nlocations: [{{ path: /, respond: {{ status: 200, body: ok }} }}]\n",
        addresses.join(", ")
    );
    bench.start_gateway("connections", &text)
}

/// Connections that each sent one request, so that they are open for the next one.
fn connect(port: u16, count: usize, first_address: usize) -> Result<Vec<TcpStream>> {
    (0..count)
        .map(|number| {
            let host = 1 + (first_address + number / PER_ADDRESS) % usize::from(ADDRESSES);
            let address = Ipv4Addr::new(127, 0, 0, u8::try_from(host)?);
            let mut stream = TcpStream::connect((address, port))?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(GET)?;
            read_answer(&mut stream)?;
            Ok(stream)
        })
        .collect()
}

/// Sends at least `count` requests, one on each connection at a time.
fn exchange(streams: &mut [TcpStream], count: usize) -> Result<usize> {
    let turns = count.div_ceil(streams.len());
    for _ in 0..turns {
        for stream in streams.iter_mut() {
            stream.write_all(GET)?;
        }
        for stream in streams.iter_mut() {
            read_answer(stream)?;
        }
    }
    Ok(turns * streams.len())
}

/// The whole response comes in one piece.
fn read_answer(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut answer = [0; 4096];
    let length = stream.read(&mut answer)?;
    match answer[..length].starts_with(b"HTTP/1.1 200 ") {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::InvalidData, "no answer with status 200")),
    }
}
