//! Connections to Redis by TLS: certificates of servers and of gateways.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::link::RedisProcess;
use crate::support::fleet::{counting_on, is_degraded};
use crate::support::{Gateway, Run, Scratch, eventually, free_addr, ms};

/// A server that speaks TLS only, and the certificate of its authority.
fn with_tls() -> (RedisProcess, std::path::PathBuf, Scratch) {
    with_tls_and_clients("no")
}

/// `clients`: whether they need a certificate, too; the folder of the authority holds one, `server.pem`.
fn with_tls_and_clients(clients: &str) -> (RedisProcess, std::path::PathBuf, Scratch) {
    let scratch = Scratch::new();
    let mut authority = CertificateParams::new(vec![]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // OpenSSL takes a certificate with the name of its issuer for one that vouches for itself.
    authority.distinguished_name.push(DnType::CommonName, "authority");
    let key = KeyPair::generate().unwrap();
    let vouches = scratch.file("ca.pem", &authority.self_signed(&key).unwrap().pem());
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let certificate = scratch.file("server.pem", &certificate.pem());
    let key = scratch.file("server.key", &key.serialize_pem());
    let addr = free_addr();
    let path = |path: &std::path::Path| path.display().to_string();
    let redis = RedisProcess::start_at(
        addr,
        &[
            "--port",
            "0",
            "--bind",
            "127.0.0.1",
            "--tls-port",
            &addr.port().to_string(),
            "--tls-cert-file",
            &path(&certificate),
            "--tls-key-file",
            &path(&key),
            "--tls-ca-cert-file",
            &path(&vouches),
            "--tls-auth-clients",
            clients,
        ],
    );
    (redis, vouches, scratch)
}

/// A gateway that counts on the server behind `redis` by TLS, and trusts the authority `vouches`.
fn trusting(vouches: &std::path::Path, redis: &RedisProcess) -> Gateway {
    let head = counting_on(&format!("rediss://localhost:{}", redis.addr.port()), "200ms");
    let location = "locations: [{ path: /, limits: { key: global, rate: 5/1h }, respond: { status: 200 } }]";
    let run = Run::default().env("SSL_CERT_FILE", &vouches.display().to_string());
    run.start(&format!("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n{head}{location}"))
}

#[test]
fn a_certificate_is_trusted_if_ssl_cert_file_says_so() {
    let (redis, vouches, _scratch) = with_tls();
    let gateway = trusting(&vouches, &redis);
    eventually("an encrypted answer", || !is_degraded(&gateway));
    gateway.get("/").expect(200);
    assert!(gateway.metric("sluicegate_redis_calls_total", &["result=\"ok\""]) > 0.0);
    let (_other, stranger, _scratch) = with_tls();
    let wary = trusting(&stranger, &redis);
    std::thread::sleep(ms(1500));
    assert!(is_degraded(&wary), "a server without a trusted authority is not trusted");
}

#[test]
fn a_server_gets_the_certificate_that_it_asks_for() {
    let (redis, vouches, scratch) = with_tls_and_clients("yes");
    let start = |tls: &str| {
        let port = redis.addr.port();
        let yaml = format!(
            "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nstate:\n  store: redis\n  \
             redis: {{ url: \"rediss://localhost:{port}\", timeout: 200ms, tls: {tls} }}\n\
             locations: [{{ path: /, limits: {{ key: global, rate: 5/1h }}, respond: {{ status: 200 }} }}]"
        );
        Run::default().start(&yaml)
    };
    let path = |name: &str| scratch.path().join(name).display().to_string();
    let own = format!("cert: {}, key: {}", path("server.pem"), path("server.key"));
    let ca = format!("ca: {}", vouches.display());
    let gateway = start(&format!("{{ {ca}, {own} }}"));
    eventually("an encrypted answer", || !is_degraded(&gateway));
    gateway.get("/").expect(200);
    assert!(gateway.metric("sluicegate_redis_calls_total", &["result=\"ok\""]) > 0.0);
    // Without a certificate the server, and without the authority the gateway, trusts nobody.
    for tls in [format!("{{ {ca} }}"), format!("{{ {own} }}")] {
        let wary = start(&tls);
        std::thread::sleep(ms(1500));
        assert!(is_degraded(&wary), "{tls}");
    }
}
