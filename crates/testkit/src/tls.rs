//! Certificates for one test, and TLS clients: rustls for the details, curl as a real client.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};

use super::PATIENCE;
use super::run::Scratch;

/// A certificate authority for one test, in a folder of its own.
pub struct Authority {
    pub scratch: Scratch,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(vec![]).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = named("the authority");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let scratch = Scratch::new();
        scratch.file("ca.pem", &certificate.pem());
        let certificate = certificate.der().clone();
        Authority { scratch, issuer: Issuer::new(params, key), certificate }
    }

    /// Writes NAME.pem and NAME.key.pem for these hosts.
    pub fn issue(&self, name: &str, hosts: &[&str]) {
        self.issue_with(name, hosts, |_| {});
    }

    pub fn issue_with(&self, name: &str, hosts: &[&str], edit: impl Fn(&mut CertificateParams)) {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("host names");
        edit(&mut params);
        params.distinguished_name = named(name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        self.scratch.file(&format!("{name}.pem"), &certificate.pem());
        self.scratch.file(&format!("{name}.key.pem"), &key.serialize_pem());
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.scratch.path().join(file)
    }

    /// The fields of a `tls` entry for the certificate called `name`.
    pub fn entry(&self, name: &str) -> String {
        let path = |file: String| self.path(&file).display().to_string();
        format!("cert: {}, key: {}", path(format!("{name}.pem")), path(format!("{name}.key.pem")))
    }

    /// The one certificate of a file.
    pub fn certificate(&self, name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.path(&format!("{name}.pem"))).expect("a certificate")
    }

    /// A client that trusts this authority, and presents the certificate called `own` if there is one.
    pub fn client(&self, own: Option<&str>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("the authority's certificate");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        let Some(own) = own else { return builder.with_no_client_auth() };
        let key = PrivateKeyDer::from_pem_file(self.path(&format!("{own}.key.pem"))).expect("a key");
        builder.with_client_auth_cert(vec![self.certificate(own)], key).expect("a certificate of our own")
    }

    /// Runs curl, trusting this authority, with every host at `addr`.
    #[track_caller]
    pub fn curl(&self, addr: SocketAddr, arguments: &[&str]) -> Curled {
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "10", "--noproxy", "*", "--cacert"]).arg(self.path("ca.pem"));
        command.args(["--connect-to", &format!("::{addr}"), "-w", "\n%{http_code} %{http_version}"]);
        let output = command.args(arguments).stdin(Stdio::null()).output().expect("curl runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').unwrap_or(("", &text));
        Curled {
            exit: output.status.code().unwrap_or(-1),
            body: body.to_owned(),
            status: status.to_owned(),
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut named = DistinguishedName::new();
    named.push(DnType::CommonName, name);
    named
}

/// The result of a curl run.
#[derive(Debug)]
pub struct Curled {
    pub exit: i32,
    pub body: String,
    /// Status and version, e.g. `200 2`.
    pub status: String,
    pub errors: String,
}

impl Curled {
    #[track_caller]
    pub fn expect(self, status: &str) -> Curled {
        assert!(self.exit == 0 && self.status == status, "{self:?}");
        self
    }

    /// The value of a header as the built-in echo received it.
    #[track_caller]
    pub fn received(&self, header: &str) -> Option<String> {
        let echo: serde_json::Value = serde_json::from_str(&self.body).expect("the echo's JSON");
        echo["headers"][header].as_str().map(str::to_owned)
    }
}

pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Performs the handshake with `host` at `addr` over `stream`; the error is the first one on either side.
pub fn shake_hands_over(
    stream: TcpStream,
    config: &Arc<ClientConfig>,
    host: &str,
) -> std::io::Result<TlsStream> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let name = ServerName::try_from(host.to_owned()).expect("a host name");
    let connection = ClientConnection::new(config.clone(), name).expect("a client");
    let mut stream = StreamOwned::new(connection, stream);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

pub fn shake_hands(addr: SocketAddr, config: &Arc<ClientConfig>, host: &str) -> std::io::Result<TlsStream> {
    shake_hands_over(TcpStream::connect_timeout(&addr, PATIENCE)?, config, host)
}

/// The certificate that the other side presented.
pub fn shown(stream: &TlsStream) -> CertificateDer<'static> {
    stream.conn.peer_certificates().expect("a certificate")[0].clone().into_owned()
}

pub fn is_resumed(stream: &TlsStream) -> bool {
    stream.conn.handshake_kind() == Some(HandshakeKind::Resumed)
}

/// Accepts any certificate.
#[derive(Debug)]
pub struct AnyCertificate;

impl rustls::client::danger::ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        vec![rustls::SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}
