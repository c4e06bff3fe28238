//! Several gateways, several processes and several entries.

use std::time::Duration;

use crate::directory::{Deed, Step, problem};
use crate::pebble::Options;
use crate::site::{HELLO, Site, kill, next_in, orders, patiently, provider, status, wait_failed};
use crate::support::tls::{shake_hands, shown};
use crate::support::*;

/// How long another gateway may take to see a new certificate or the end of a lock.
const MINUTE: Duration = Duration::from_secs(58);

/// Two gateways on one folder. Whichever of them orders, the challenges of pebble reach the other one.
struct Pair {
    site: Site,
    /// In front of the plain and of the secure listeners.
    balancers: [Proxy; 2],
    addresses: [[std::net::SocketAddr; 2]; 2],
}

impl Pair {
    fn new() -> Pair {
        let addresses = [[free_addr(), free_addr()], [free_addr(), free_addr()]];
        let balancers = [Proxy::start(addresses[1][0]), Proxy::start(addresses[1][1])];
        let challenges = [balancers[0].addr(), balancers[1].addr()];
        let options = Options { challenges, ..Options::default() };
        let site = Site::behind(options, addresses[0][0], addresses[0][1]);
        Pair { site, balancers, addresses }
    }

    #[track_caller]
    fn start(&self, place: usize, domains: &str) -> Gateway {
        let [plain, secure] = self.addresses[place];
        let acme = self.site.acme(domains);
        Gateway::start(&format!(
            "listen: [\"{plain}\", {{ address: \"{secure}\", tls: {{ acme: {{ {acme} }} }} }}]\n{HELLO}"
        ))
    }

    /// The challenges reach this gateway from now on.
    fn lead_to(&self, place: usize) {
        for (balancer, address) in self.balancers.iter().zip(self.addresses[place]) {
            balancer.lead_to(address);
        }
    }
}

/// One order for both, answered by the gateway that does not order, by either challenge.
#[test]
fn two_gateways_make_one_order_and_answer_for_each_other() {
    at_once(["tls-alpn-01", "http-01"], |kind| {
        let pair = Pair::new();
        let site = &pair.site;
        let gate = Gate::default();
        let opened = gate.clone();
        let hides = kind == "http-01";
        site.directory.script(move |asked| match asked.step {
            Step::NewOrder => Deed::Hold(opened.clone()),
            Step::Authorization if hides => Deed::Edit(|found| {
                if let Some(all) = found["challenges"].as_array_mut() {
                    all.retain(|one| one["type"] != "tls-alpn-01");
                }
            }),
            _ => Deed::Forward,
        });
        let orderer = pair.start(0, "a.test");
        site.directory.wait(Step::NewOrder, 1);
        let other = pair.start(1, "a.test");
        std::thread::sleep(ms(500));
        gate.open();
        let first = site.wait_real_at(pair.addresses[0][1], "a.test");
        let connections = |place: usize| pair.balancers[place].attempts().len();
        assert!(connections(usize::from(!hides)) > 0, "pebble came by the balancer");
        assert_eq!(site.directory.tried(), [kind], "and the first try was answered");
        let secure = pair.addresses[1][1];
        let config = site.client();
        patiently(MINUTE, "the same certificate at the other gateway", || {
            let stream = shake_hands(secure, &config, "a.test");
            stream.is_ok_and(|stream| shown(&stream) == first)
        });
        assert_eq!(site.directory.count(Step::NewOrder), 1);
        assert_eq!(site.directory.count(Step::NewAccount), 1);
        assert_eq!(orders(&orderer)[0] + orders(&other)[0], 1.0);
    });
}

/// The gateway that ordered dies; the other one takes over when the lock has expired.
pub fn the_lock_of_a_dead_gateway_expires() {
    let pair = Pair::new();
    let site = &pair.site;
    site.directory.at(Step::Finalize, |_| Deed::Silence);
    pair.lead_to(0);
    let orderer = pair.start(0, "a.test");
    site.directory.wait(Step::Finalize, 1);
    kill(orderer);
    site.directory.forward();
    site.pass_time(60);
    pair.lead_to(1);
    let _other = pair.start(1, "a.test");
    std::thread::sleep(ms(3000));
    assert_eq!(site.directory.count(Step::NewOrder), 1, "the lock holds");
    let config = site.client();
    patiently(MINUTE, "a certificate by the other gateway", || {
        shake_hands(pair.addresses[1][1], &config, "a.test").is_ok()
    });
    assert_eq!(site.directory.count(Step::NewAccount), 1);
}

/// After an upgrade one process orders, and the certificate serves in the new one.
#[test]
fn after_an_upgrade_one_process_orders() {
    let site = Site::shared();
    let mut gateway = site.start("a.test");
    let first = site.wait_real("a.test");
    let successor = gateway.upgrade();
    assert!(site.served("a.test") == first);
    std::thread::sleep(ms(700));
    assert_eq!(site.directory.count(Step::NewOrder), 1);
    gateway.change(&site.file("a.test, b.test"));
    site.wait_real("b.test");
    assert_eq!(site.directory.count(Step::NewOrder), 2);
    drop(successor);
}

/// An upgrade in the middle of an order: the new process neither repeats it at once nor loses it.
#[test]
fn an_upgrade_during_an_order() {
    let site = Site::shared();
    site.directory.at(Step::Authorization, |_| Deed::Silence);
    let mut gateway = site.start("a.test");
    site.directory.wait(Step::Authorization, 1);
    let successor = gateway.upgrade();
    site.directory.forward();
    site.served("a.test");
    std::thread::sleep(ms(2500));
    let made = site.directory.count(Step::NewOrder);
    assert!(made <= 2, "{made} orders");
    if made == 1 {
        let next = next_in(&gateway).expect("a moment");
        assert!((1..=66).contains(&next), "the next order in {next} s");
    }
    assert_eq!(site.directory.count(Step::NewAccount), 1);
    drop(successor);
}

/// Entries of `acme` and `cert` stand on one listener, are chosen by name, and share an account.
#[test]
fn entries_of_a_listener_are_chosen_by_name() {
    let site = Site::shared();
    site.world.authority.issue("own", &["own.test"]);
    let [one, two] = ["a.test", "b.test, c.test"].map(|domains| site.acme(domains));
    let own = site.world.authority.entry("own");
    let tls = format!("[{{ {own} }}, {{ acme: {{ {one} }} }}, {{ acme: {{ {two} }} }}]");
    let gateway = Gateway::start(&site.listening(&tls, HELLO));
    let own = site.world.authority.certificate("own");
    assert!(
        site.served("own.test") == own && site.served("nobody.test") == own,
        "the first is for strangers"
    );
    let first = site.wait_real("a.test");
    let second = site.wait_real("b.test");
    assert!(first != second && site.wait_real("c.test") == second);
    assert!(site.served("own.test") == own);
    assert_eq!(site.directory.count(Step::NewAccount), 1, "one account of one directory and e-mail");
    assert_eq!(orders(&gateway), [2.0, 0.0]);
    assert_eq!(status(&gateway)["certificates"].as_array().map(Vec::len), Some(3));
}

/// The same entry on two listeners is one certificate.
#[test]
fn one_certificate_serves_two_listeners() {
    let site = Site::shared();
    let (other, acme) = (free_addr(), site.acme("a.test"));
    let second = format!("{{ address: \"{other}\", tls: {{ acme: {{ {acme} }} }} }}");
    let yaml = site.file("a.test").replacen("listen: [", &format!("listen: [{second}, "), 1);
    let gateway = Gateway::start(&yaml);
    let first = site.wait_real("a.test");
    assert!(site.wait_real_at(other, "a.test") == first);
    std::thread::sleep(ms(2500));
    assert_eq!((site.directory.count(Step::NewOrder), orders(&gateway)), (1, [1.0, 0.0]));
}

/// One order fails, and the other entry gets its certificate all the same.
#[test]
fn a_failing_entry_holds_no_other_up() {
    let site = Site::shared();
    site.directory.at(Step::NewOrder, |asked| match asked.payload().to_string().contains("bad.test") {
        true => Deed::Answer(403, "", problem("rejectedIdentifier", "bad.test is not served")),
        false => Deed::Forward,
    });
    let [bad, good] = ["bad.test", "good.test"].map(|domains| site.acme(domains));
    let tls = format!("[{{ acme: {{ {bad} }} }}, {{ acme: {{ {good} }} }}]");
    let gateway = Gateway::start(&site.listening(&tls, HELLO));
    site.wait_real("good.test");
    wait_failed(&gateway);
    gateway.wait_stderr("bad.test is not served");
}

/// The authority of clients and the oldest version hold for these certificates as for those of files.
#[test]
fn client_certificates_and_versions_as_with_files() {
    let site = Site::new();
    site.world.authority.issue("client", &["client.test"]);
    let (acme, ca) = (site.acme("a.test"), site.world.authority.file());
    let tls = format!("{{ acme: {{ {acme} }}, client_ca: {}, min_version: \"1.3\" }}", ca.display());
    let _gateway = Gateway::start(&site.listening(&tls, HELLO));
    // tls-alpn-01 brings no certificate of a client, so the listener needs http-01 at the latest.
    let mut roots = rustls::RootCertStore::empty();
    let certificate = site.root();
    roots.add(certificate).expect("a certificate");
    let key = rustls::pki_types::pem::PemObject::from_pem_file(site.world.authority.path("client.key.pem"));
    let builder = rustls::ClientConfig::builder_with_provider(provider());
    let builder =
        builder.with_safe_default_protocol_versions().expect("versions").with_root_certificates(roots);
    let own = vec![site.world.authority.certificate("client")];
    let config = builder.with_client_auth_cert(own, key.expect("a key")).expect("a certificate");
    let config = std::sync::Arc::new(config);
    let ask = || {
        let stream = shake_hands(site.secure, &config, "a.test").ok()?;
        Some(Client::over_tls(stream).ask(&get("/").host("a.test")).status)
    };
    patiently(ms(20_000), "a page for a client with a certificate", || ask() == Some(200));
    let stranger = shake_hands(site.secure, &site.client(), "a.test");
    let refused = stranger.is_err() || {
        let mut client = Client::over_tls(stranger.expect("checked"));
        let _ = client.try_send(get("/").host("a.test").bytes());
        client.response_within(PATIENCE).is_err()
    };
    assert!(refused, "a client without a certificate is refused");
}
