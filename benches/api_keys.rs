//! A million API keys: memory and time of the table, and the latency of requests while the file is read again.
//!
//! `cargo bench --bench api_keys` measures the table; with `-- --gateway FILE` it also starts the program at FILE.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_types, reason = "a benchmark is timed by the real clock")]

use std::fmt::Write as _;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sluicegate_model::api_keys::{ApiKeyHash, ApiKeyTable};

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const KEYS: u64 = 1_000_000;
const LOOKUPS: u64 = 2_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let text = file_of_keys(KEYS);
    println!("the file of {KEYS} keys               {:7.1} MB", text.len() as f64 / 1e6);
    measure_table(text.as_bytes())?;
    if let Some(at) = arguments.iter().position(|argument| argument == "--gateway") {
        let gateway = arguments.get(at + 1).ok_or("--gateway FILE")?;
        measure_reload(Path::new(gateway), &text)?;
    }
    Ok(())
}

fn key(number: u64) -> String {
    format!("sgk-bench-{number:020}")
}

fn file_of_keys(keys: u64) -> String {
    let mut text = "sha256,account,tier,until,disabled,note\n".to_owned();
    for number in 0..keys {
        let hash = ApiKeyHash::of_key(key(number).as_bytes());
        let _ = writeln!(text, "{hash},customer-{number},gold,2099-01-31T00:00:00Z,,note {number}");
    }
    text
}

/// The resident memory of a process, in bytes.
fn resident(process: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() * 1024
}

fn measure_table(text: &[u8]) -> Result<(), String> {
    let hashes: Vec<ApiKeyHash> =
        (0..KEYS).map(|number| ApiKeyHash::of_key(key(number).as_bytes())).collect();
    for round in 1..=3_u64 {
        let start = Instant::now();
        let table = ApiKeyTable::parse(text)?;
        println!("table {round}: read in            {:7.1} ms", start.elapsed().as_secs_f64() * 1e3);
        let (mut took, mut at) = (Duration::ZERO, round);
        for _ in 0..LOOKUPS / 4000 {
            let mut next = || {
                // A stride that no prefetcher can learn.
                at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                hashes[((at >> 33) % KEYS) as usize]
            };
            let asked: Vec<ApiKeyHash> = (0..4000).map(|_| next()).collect();
            let start = Instant::now();
            for hash in &asked {
                black_box(table.find_key(hash, 0).ok_or("a known key")?.account());
            }
            took += start.elapsed();
        }
        println!("table {round}: a look-up by hash  {:7.1} ns", took.as_nanos() as f64 / LOOKUPS as f64);
    }
    Ok(())
}

/// A started gateway, ended with its value.
struct Gateway(Child, u16);

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_gateway(program: &Path, folder: &Path) -> Result<Gateway, Box<dyn std::error::Error>> {
    let yaml = "listen: 127.0.0.1:0\nadmin: none\naccess_log: { output: none }\nserver: { workers: 1, keepalive: { requests: 100000000 } }\n\
                account: { keys: { file: keys.csv } }\nlocations: [{ path: /, respond: { body: ok } }]\n";
    std::fs::write(folder.join("gateway.yaml"), yaml)?;
    let file = folder.join("gateway.yaml");
    let mut child = Command::new(program).arg("run").arg("-c").arg(file).stderr(Stdio::piped()).spawn()?;
    let stderr = BufReader::new(child.stderr.take().ok_or("no stderr")?);
    let mut gateway = Gateway(child, 0);
    for line in stderr.lines().map_while(Result::ok) {
        if let Some((_, address)) = line.split_once("listening http://127.0.0.1:") {
            gateway.1 = address.trim_end_matches(['"', '}']).parse()?;
            return Ok(gateway);
        }
    }
    Err("the gateway does not listen".into())
}

fn ask(connection: &mut TcpStream, key: &str) -> std::io::Result<u16> {
    write!(connection, "GET / HTTP/1.1\r\nHost: bench.test\r\nX-Api-Key: {key}\r\n\r\n")?;
    let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match connection.read(&mut buffer)? {
            0 => break,
            read => head.extend_from_slice(&buffer[..read]),
        }
    }
    Ok(head.get(9..12).and_then(|status| str::from_utf8(status).ok()?.parse().ok()).unwrap_or_default())
}

/// Asks one request after the other, once with an unchanged file and once while it is replaced each second.
fn measure_reload(program: &Path, text: &str) -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("sluicegate-keys-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let replace = |text: &str| {
        std::fs::write(folder.join("new.csv"), text)
            .and_then(|()| std::fs::rename(folder.join("new.csv"), folder.join("keys.csv")))
    };
    let first: String = text.split_inclusive('\n').take(2).collect();
    replace(&first)?;
    let gateway = start_gateway(program, &folder)?;
    let before = resident(&gateway.0.id().to_string());
    replace(text)?;
    let mut connection = TcpStream::connect(("127.0.0.1", gateway.1))?;
    connection.set_nodelay(true)?;
    let last = key(KEYS - 1);
    let start = Instant::now();
    while ask(&mut connection, &last)? != 200 {
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("the gateway knows a million keys after {:6.2} s", start.elapsed().as_secs_f64());
    std::thread::sleep(Duration::from_secs(12));
    let used = resident(&gateway.0.id().to_string()).saturating_sub(before) as f64 / KEYS as f64;
    println!("resident memory of the gateway          {used:7.1} bytes per key");
    for changes in [0, 5, 0, 5] {
        let mut took = Vec::new();
        let end = Instant::now() + Duration::from_secs(10);
        let writer = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for change in 0..changes {
                    replace(&format!("{text}{},extra,,,,\n", ApiKeyHash::of_key(&[change])))?;
                    std::thread::sleep(Duration::from_secs(2));
                }
                Ok::<(), std::io::Error>(())
            });
            while Instant::now() < end {
                let start = Instant::now();
                let status = ask(&mut connection, &last);
                took.push(start.elapsed());
                if !matches!(status, Ok(200)) {
                    return Err(std::io::Error::other("a known key was refused"));
                }
            }
            writer.join().unwrap_or(Ok(()))
        });
        writer?;
        took.sort_unstable();
        let at = |share: f64| took[(took.len() as f64 * share) as usize].as_secs_f64() * 1e6;
        println!(
            "{changes} reloads in 10 s: {} requests, p50 {:.0} us, p99 {:.0} us, p99.9 {:.0} us, most {:.0} us",
            took.len(),
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0 - f64::EPSILON * 4.0),
        );
    }
    let (revoked, start) = (text.rsplit_once("gold").ok_or("a tier")?, Instant::now());
    replace(&format!("{}gold,,true,\n", revoked.0))?;
    while ask(&mut connection, &last)? == 200 {
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("a revoked key is refused after          {:7.2} s", start.elapsed().as_secs_f64());
    drop(gateway);
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
