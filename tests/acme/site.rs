//! A site whose certificates come from pebble: its names, its directory, its folder and its addresses.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::Value;

use crate::directory::Directory;
use crate::names::Names;
use crate::pebble::{Options, Pebble};
use crate::support::run::Scratch;
use crate::support::tls::{AnyCertificate, TlsStream, shake_hands, shown};
use crate::support::*;

/// The answer of every location of [`Site::file`].
pub const HELLO: &str = "locations: [{ path: /, respond: { body: hello } }]\n";

/// What a first order takes at most on a busy machine.
const ORDER: Duration = ms(40_000);

pub struct Site {
    pub world: Arc<World>,
    pub directory: Directory,
    /// The plain listener, where http-01 is answered.
    pub plain: SocketAddr,
    /// The listener with TLS, where tls-alpn-01 is answered.
    pub secure: SocketAddr,
    scratch: Scratch,
}

/// A pebble with the authority of its own address, and the names that it knows.
pub struct World {
    pub authority: Authority,
    pub names: Names,
    pebble: Mutex<Option<Pebble>>,
    options: Options,
    at: SocketAddr,
    /// A certificate of the authority for directories.
    settings: Arc<ServerConfig>,
    scratch: Scratch,
}

impl World {
    fn new(options: Options) -> World {
        let (authority, names) = (Authority::new(), Names::start());
        let settings = authority.certify(&["127.0.0.1"]).server(&["http/1.1"]);
        let (pebble, at, scratch) = (Mutex::new(None), free_addr(), Scratch::new());
        World { authority, names, pebble, options, at, settings, scratch }
    }

    fn start(self) -> Arc<World> {
        *self.pebble.lock().unwrap() =
            Some(Pebble::start(self.at, &self.options, &self.authority, &self.names, self.scratch.path()));
        Arc::new(self)
    }
}

impl Site {
    /// A site whose gateway answers challenges where pebble expects them.
    pub fn new() -> Site {
        Site::with(Options::default())
    }

    pub fn with(options: Options) -> Site {
        let [plain, secure] = options.challenges;
        Site::behind(options, plain, secure)
    }

    /// The same with other addresses of the gateway.
    pub fn behind(options: Options, plain: SocketAddr, secure: SocketAddr) -> Site {
        Site::of(World::new(options).start(), plain, secure)
    }

    /// A site whose directory nobody answers.
    pub fn alone() -> Site {
        Site::of(Arc::new(World::new(Options::default())), free_addr(), free_addr())
    }

    /// A site whose pebble believes every answer to a challenge, so that all tests that run share it.
    pub fn shared() -> Site {
        static SHARED: Mutex<Weak<World>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let world = shared.upgrade().unwrap_or_else(|| {
            let world = World::new(Options { believes: true, ..Options::default() }).start();
            *shared = Arc::downgrade(&world);
            world
        });
        drop(shared);
        Site::of(world, free_addr(), free_addr())
    }

    /// Another directory, folder and gateway for the same pebble.
    pub fn beside(&self) -> Site {
        Site::of(self.world.clone(), free_addr(), free_addr())
    }

    fn of(world: Arc<World>, plain: SocketAddr, secure: SocketAddr) -> Site {
        let directory = Directory::start(world.at, world.settings.clone(), &world.authority);
        Site { world, directory, plain, secure, scratch: Scratch::new() }
    }

    /// Starts pebble anew, which then knows no account and no order.
    pub fn forget(&self) {
        let World { authority, names, pebble, options, at, scratch, .. } = &*self.world;
        let mut pebble = pebble.lock().unwrap();
        drop(pebble.take());
        *pebble = Some(Pebble::start(*at, options, authority, names, scratch.path()));
    }

    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    pub fn storage(&self) -> PathBuf {
        self.scratch.path().join("storage")
    }

    /// The files of `storage` with their contents.
    pub fn stored(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        let mut folders = vec![self.storage()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.path() {
                    path if path.is_dir() => folders.push(path),
                    path => found.extend(std::fs::read(&path).ok().map(|text| (path, text))),
                }
            }
        }
        found
    }

    /// Lets so many seconds pass for the waits in `storage`; no gateway may be running.
    pub fn pass_time(&self, seconds: u64) {
        for (path, text) in self.stored() {
            let Ok(mut content) = serde_json::from_slice::<Value>(&text) else { continue };
            if let Some(failed_at) = content["failed_at"].as_u64() {
                content["failed_at"] = (failed_at - seconds).into();
                std::fs::write(path, content.to_string()).expect("the file can be written");
            }
        }
    }

    /// The fields of `acme` for these domains.
    pub fn acme(&self, domains: &str) -> String {
        let (directory, ca) = (self.directory.url(), self.world.authority.file());
        let (ca, storage) = (ca.display(), self.storage());
        let storage = storage.display();
        format!("domains: [{domains}], directory: \"{directory}\", ca: {ca}, storage: {storage}")
    }

    /// The file of a gateway on both listeners; `tls` is an entry or a list of them.
    pub fn listening(&self, tls: &str, rest: &str) -> String {
        let (plain, secure) = (self.plain, self.secure);
        format!("listen: [\"{plain}\", {{ address: \"{secure}\", tls: {tls} }}]\n{rest}")
    }

    /// The file of a gateway with one certificate for these domains.
    pub fn file(&self, domains: &str) -> String {
        self.listening(&format!("{{ acme: {{ {} }} }}", self.acme(domains)), HELLO)
    }

    #[track_caller]
    pub fn start(&self, domains: &str) -> Gateway {
        Gateway::start(&self.file(domains))
    }

    /// The certificate of pebble's authority, which it makes at its start.
    #[track_caller]
    pub fn root(&self) -> CertificateDer<'static> {
        self.world.pebble.lock().unwrap().as_ref().expect("a pebble").root.clone()
    }

    /// A client that trusts pebble's authority alone.
    #[track_caller]
    pub fn client(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root()).expect("a certificate");
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions().expect("versions");
        Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
    }

    /// The certificate that clients of `host` get, whatever it is.
    #[track_caller]
    pub fn served(&self, host: &str) -> CertificateDer<'static> {
        shown(&any(self.secure, host, &[]).expect("a handshake"))
    }

    /// Waits until a client that trusts pebble's authority alone gets a page from `host`.
    #[track_caller]
    pub fn wait_real(&self, host: &str) -> CertificateDer<'static> {
        self.wait_real_at(self.secure, host)
    }

    #[track_caller]
    pub fn wait_real_at(&self, addr: SocketAddr, host: &str) -> CertificateDer<'static> {
        let stream = self.wait_trusted(addr, host);
        let certificate = shown(&stream);
        Client::over_tls(stream).ask(&get("/").host(host)).expect(200);
        certificate
    }

    /// The same without a request.
    #[track_caller]
    pub fn wait_real_certificate(&self, host: &str) -> CertificateDer<'static> {
        shown(&self.wait_trusted(self.secure, host))
    }

    #[track_caller]
    fn wait_trusted(&self, addr: SocketAddr, host: &str) -> TlsStream {
        let config = self.client();
        let mut found = None;
        patiently(ORDER, &format!("a certificate for {host}"), || {
            found = shake_hands(addr, &config, host).ok();
            found.is_some()
        });
        found.expect("a connection")
    }

    #[track_caller]
    pub fn is_real(&self, host: &str) -> bool {
        shake_hands(self.secure, &self.client(), host).is_ok()
    }

    /// Waits until clients of `host` get another certificate than this, for at most so long.
    #[track_caller]
    pub fn wait_other(&self, host: &str, old: &CertificateDer<'_>, most: Duration) {
        patiently(most, "another certificate", || self.served(host) != *old);
    }
}

pub fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// A handshake by a client that trusts everybody and speaks these protocols.
pub fn any(addr: SocketAddr, host: &str, protocols: &[&[u8]]) -> std::io::Result<TlsStream> {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    let mut config =
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate)).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    shake_hands(addr, &Arc::new(config), host)
}

/// `/status` in JSON.
#[track_caller]
pub fn status(gateway: &Gateway) -> Value {
    gateway.ask_admin(&get("/status").header("Accept", "application/json")).expect(200).json()
}

/// The permissions of a file or a folder.
#[track_caller]
pub fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it exists").permissions().mode() & 0o7777
}

/// Ends a gateway as a crash of the machine would.
pub fn kill(gateway: Gateway) {
    drop(gateway);
}

/// How many orders have ended with a certificate, and how many without.
#[track_caller]
pub fn orders(gateway: &Gateway) -> [f64; 2] {
    let metric = |labels: &[&str]| gateway.metric("sluicegate_acme_orders_total", labels);
    let good = metric(&["result=\"issued\""]);
    [good, metric(&[]) - good]
}

/// True while `/status` says why an order failed.
#[track_caller]
pub fn has_failed(gateway: &Gateway) -> bool {
    status(gateway)["acme"].as_array().is_some_and(|all| all.iter().any(|one| one["error"].is_string()))
}

/// Waits until an order has failed.
#[track_caller]
pub fn wait_failed(gateway: &Gateway) {
    patiently(ORDER, "a failed order", || has_failed(gateway));
}

/// The seconds until the next order of the first certificate, as `/status` has them.
#[track_caller]
pub fn next_in(gateway: &Gateway) -> Option<u64> {
    status(gateway)["acme"][0]["next_order_in_s"].as_u64()
}

/// Polls seldom until `done`: each look is a handshake, and orders take seconds.
#[track_caller]
pub fn patiently(most: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + most;
    while !done() {
        assert!(Instant::now() < deadline, "never came: {what}");
        std::thread::sleep(ms(150));
    }
}
