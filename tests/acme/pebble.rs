//! Pebble, the certificate authority for tests, as Debian packages it.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;

use crate::names::Names;
use crate::support::run::Lines;
use crate::support::tls::shake_hands;
use crate::support::*;

/// The settings of one pebble.
#[derive(Debug, Clone)]
pub struct Options {
    /// The life of its certificates in seconds.
    pub life: u32,
    /// How many of a hundred good nonces it takes for bad ones.
    pub bad_nonces: u32,
    /// The id and the HMAC of an external account, which new accounts must then have.
    pub external: Option<(String, String)>,
    /// Whether it believes each answer to a challenge without asking.
    pub believes: bool,
    /// Where it expects the answers: http-01 and tls-alpn-01.
    pub challenges: [SocketAddr; 2],
}

/// A running pebble; dropping it kills it.
pub struct Pebble {
    /// The certificate of its authority.
    pub root: CertificateDer<'static>,
    child: Child,
    output: Lines,
}

impl Default for Options {
    fn default() -> Options {
        let challenges = [free_addr(), free_addr()];
        Options { life: 90 * 86_400, bad_nonces: 0, external: None, believes: false, challenges }
    }
}

impl Pebble {
    /// Starts one in `folder`, with a certificate of `authority`, at `addr`.
    #[track_caller]
    pub fn start(
        addr: SocketAddr,
        options: &Options,
        authority: &Authority,
        names: &Names,
        folder: &Path,
    ) -> Pebble {
        let own = authority.certify(&["127.0.0.1"]);
        let management = free_addr();
        let keys: serde_json::Map<_, _> =
            options.external.iter().map(|(id, hmac)| (id.clone(), json!(hmac))).collect();
        let settings = json!({ "pebble": {
            "listenAddress": addr.to_string(),
            "managementListenAddress": management.to_string(),
            "certificate": own.cert,
            "privateKey": own.key,
            "httpPort": options.challenges[0].port(),
            "tlsPort": options.challenges[1].port(),
            "externalAccountBindingRequired": options.external.is_some(),
            "externalAccountMACKeys": keys,
            "certificateValidityPeriod": options.life,
        }});
        let file = folder.join("pebble.json");
        std::fs::write(&file, settings.to_string()).expect("the folder takes files");
        let mut command = Command::new("pebble");
        command.arg("-strict").arg("-config").arg(file).arg("-dnsserver").arg(names.addr().to_string());
        command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_AUTHZREUSE", "0");
        command.env("PEBBLE_WFE_NONCEREJECT", options.bad_nonces.to_string());
        command.env("PEBBLE_VA_ALWAYS_VALID", if options.believes { "1" } else { "0" });
        command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("pebble starts: the package `pebble` has it");
        let output = Lines::follow(child.stdout.take().expect("piped"));
        let mut pebble = Pebble { root: CertificateDer::from(Vec::new()), child, output };
        eventually("pebble", || TcpStream::connect(addr).and(TcpStream::connect(management)).is_ok());
        let config = Arc::new(authority.client(None));
        let stream = shake_hands(management, &config, "127.0.0.1").expect("the management address");
        let pem = Client::over_tls(stream).ask(&get("/roots/0")).expect(200).body;
        pebble.root = CertificateDer::from_pem_slice(&pem).expect("a certificate");
        pebble
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let lines = self.output.all();
            let last = &lines[lines.len().saturating_sub(40)..];
            eprintln!("--- the last lines of pebble\n{}\n---", last.join("\n"));
        }
    }
}
