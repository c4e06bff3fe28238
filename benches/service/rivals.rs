//! The servers, with the same two limits: fixed windows by the address that the call states.

use std::fs;
use std::time::Duration;

use crate::child::{self, Child, Result};
use crate::{Bench, Judges, Protocol};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rival {
    Limitador,
    Sluicegate,
}

/// A started server.
pub struct Instance {
    pub rival: Rival,
    pub child: Child,
    grpc_port: u16,
    http_port: u16,
}

const START: Duration = Duration::from_secs(10);

impl Rival {
    pub const ALL: [Rival; 2] = [Rival::Limitador, Rival::Sluicegate];

    pub fn name(self) -> &'static str {
        match self {
            Rival::Limitador => "limitador",
            Rival::Sluicegate => "sluicegate",
        }
    }

    /// The path and the JSON of a call over HTTP/1.
    pub fn http_call(self, judges: Judges) -> (&'static str, String) {
        let limit = judges.limit();
        match self {
            Rival::Limitador => {
                let values = "{\"remote_address\":\"192.0.2.7\"}";
                let body = format!("{{\"namespace\":\"{limit}\",\"values\":{values},\"delta\":1}}");
                ("/check_and_report", body)
            }
            Rival::Sluicegate => {
                ("/check", format!("{{\"limits\":[\"{limit}\"],\"key\":{{\"ip\":\"192.0.2.7\"}}}}"))
            }
        }
    }
}

impl Instance {
    pub fn start(bench: &Bench, rival: Rival) -> Result<Instance> {
        let (grpc_port, http_port) = (child::free_port()?, child::free_port()?);
        let log = bench.folder.join(format!("{}.log", rival.name()));
        let (argv, http_port) = match (rival, &bench.rival) {
            (Rival::Limitador, Some(program)) => {
                let ports = [grpc_port, http_port].map(|port| port.to_string());
                (vec![program.display().to_string(), ports[0].clone(), ports[1].clone()], http_port)
            }
            (Rival::Limitador, None) => return Err("--rival is missing".into()),
            // One listener takes the calls of all protocols.
            (Rival::Sluicegate, _) => {
                let file = bench.folder.join("gateway.yaml");
                fs::write(
                    &file,
                    gateway_file(grpc_port, http_port, bench.protocols.contains(&Protocol::Grpc)),
                )?;
                let [program, file] = [&bench.gateway, &file].map(|path| path.display().to_string());
                (vec![program, "run".to_owned(), "-c".to_owned(), file], grpc_port)
            }
        };
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let mut child = child::spawn(bench.server_core, &argv, &log)?;
        child.wait_port(grpc_port, START)?;
        child.wait_port(http_port, START)?;
        Ok(Instance { rival, child, grpc_port, http_port })
    }

    pub fn port(&self, protocol: Protocol) -> u16 {
        match protocol {
            Protocol::Grpc => self.grpc_port,
            Protocol::Check => self.http_port,
        }
    }
}

fn gateway_file(service_port: u16, proxy_port: u16, has_domains: bool) -> String {
    let domains = if has_domains {
        "  domains:
    calls: [{ match: { remote_address: \"*\" }, limits: [calls] }]
    full: [{ match: { remote_address: \"*\" }, limits: [full] }]
"
    } else {
        ""
    };
    format!(
        "listen: \"127.0.0.1:{proxy_port}\"
admin: none
log: {{ level: warn }}
access_log: none
server:
  workers: 1
  keepalive: {{ requests: 100000000 }}
service:
  listen: \"127.0.0.1:{service_port}\"
{domains}limits:
  calls: {{ algorithm: fixed_window, key: ip, rate: 1000000000/1h }}
  full: {{ algorithm: fixed_window, key: ip, rate: 1000/1s }}
locations: [{{ path: /, upstream: demo }}]
"
    )
}
