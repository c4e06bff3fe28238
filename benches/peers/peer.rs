//! The proxies that are compared: their programs, versions and limits.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::bench::Bench;
use crate::child::Result;
use crate::client::probe;
use crate::kinds::Kind;
use crate::rivals::{Instance, Rival};
use crate::{backend, facts};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// One that the benchmark of the client's side has as well.
    Known(Rival),
}

/// How long a proxy may listen before it serves: Traefik reads its routes later.
const READY: Duration = Duration::from_secs(10);

/// A program that is measured.
pub struct Program {
    pub peer: Peer,
    /// Its name with its version.
    pub name: String,
    /// The gateway and the proxies that it is most often compared with.
    pub is_main: bool,
    file: String,
}

/// The programs in the order of the tables; the first one is the yardstick of all others.
pub fn find(gateway: &Path, dist: &Path) -> Result<Vec<Program>> {
    let of_system =
        |rival, name: &str, file: &str| named(Peer::Known(rival), name, Path::new(file), "-v", true);
    let own = |name: &str, file: &Path| Program {
        peer: Peer::Known(Rival::Sluicegate),
        name: name.to_owned(),
        is_main: true,
        file: file.display().to_string(),
    };
    let mut found = vec![
        of_system(Rival::Nginx, "nginx", "nginx")?,
        of_system(Rival::Haproxy, "HAProxy", "haproxy")?,
        own("Sluicegate", gateway),
    ];
    if dist.is_file() {
        found.push(own("Sluicegate, dist", dist));
    } else {
        eprintln!("{}: no such program, so it is left out", dist.display());
    }
    Ok(found)
}

fn named(peer: Peer, name: &str, file: &Path, ask: &str, is_main: bool) -> Result<Program> {
    let name = format!("{name} {}", version(file, ask)?);
    Ok(Program { peer, name, is_main, file: file.display().to_string() })
}

/// The first word of a program's output that has the form of a version.
fn version(file: &Path, ask: &str) -> Result<String> {
    let output =
        Command::new(file).arg(ask).output().map_err(|error| format!("{}: {error}", file.display()))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let word = text
        .split(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .find(|word| word.split('.').filter(|part| !part.is_empty()).count() == 3);
    Ok(word.ok_or_else(|| format!("{}: no version in {text:?}", file.display()))?.to_owned())
}

impl Program {
    /// Starts it with a listener for each of `kinds` that it can serve.
    pub fn start(&self, bench: &Bench, kinds: &[Kind]) -> Result<Instance> {
        let Peer::Known(rival) = self.peer;
        let instance = rival.start_as(bench, &self.name, &self.file, kinds)?;
        // The plain listener is among them, whatever the kinds are.
        for kind in kinds.iter().copied().filter(|kind| kind.is_probed()).chain([Kind::Plain]) {
            let end = facts::now() + u64::try_from(READY.as_nanos())?;
            while let Err(error) = check(&instance, kind) {
                if facts::now() > end {
                    return Err(format!("{}, {}: {error}", self.name, kind.name()).into());
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(instance)
    }
}

/// Checks that the answers are the expected ones; the first may be the only one that a limit admits.
fn check(instance: &Instance, kind: Kind) -> Result<()> {
    let (port, request) = (instance.port(kind), request(kind));
    probe(port, &request)?;
    let (status, text) = probe(port, &request)?;
    let length = match kind {
        Kind::Body => 1 << 20,
        Kind::Small => 1 << 10,
        _ => backend::BODY,
    };
    let expected = if kind == Kind::Rejecting {
        status == 429
    } else {
        status == 200 && text.ends_with(&"x".repeat(length))
    };
    if expected { Ok(()) } else { Err(format!("an unexpected answer:\n{text:.2000}").into()) }
}

/// The request of a kind of load.
pub fn request(kind: Kind) -> String {
    format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", kind.host())
}
