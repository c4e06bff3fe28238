//! TLS towards one server: verification, the client certificate, and sessions for resumption.

use std::io;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::net::tls::{H2, HTTP_1_1};
use sluicegate_model::{UpstreamProtocol, UpstreamTlsConfig};

/// Sessions kept per server, for all workers together: a TLS 1.3 ticket is used once.
const SESSIONS: usize = 32;

/// The TLS settings of one server.
pub struct ServerTls {
    connector: TlsConnector,
    server_name: ServerName<'static>,
    /// The configuration it was built from.
    settings: UpstreamTlsConfig,
}

impl ServerTls {
    /// `host` is the server's; the configuration has checked it.
    pub fn new(host: &str, tls: &UpstreamTlsConfig, protocol: UpstreamProtocol) -> ServerTls {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            // Cannot fail: this provider supports TLS 1.2 and 1.3.
            .expect("the provider knows the default versions");
        let builder = match &tls.roots {
            Some(roots) => builder.with_root_certificates(roots.clone()),
            None => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate)),
        };
        let mut config = match &tls.identity {
            Some(identity) => {
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.clone())))
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = match protocol {
            UpstreamProtocol::Auto => vec![H2.to_vec(), HTTP_1_1.to_vec()],
            UpstreamProtocol::Http1 => vec![HTTP_1_1.to_vec()],
            UpstreamProtocol::Http2 => vec![H2.to_vec()],
        };
        config.resumption = Resumption::in_memory_sessions(SESSIONS);
        let name = tls.server_name.clone().or_else(|| ServerName::try_from(host.to_owned()).ok());
        // Cannot fail: the configuration rejects a host that no certificate can name.
        let name = name.expect("a name for the certificate");
        ServerTls {
            connector: TlsConnector::from(Arc::new(config)),
            server_name: name,
            settings: tls.clone(),
        }
    }

    /// True if `other` has the same authorities, server name and client certificate.
    pub(super) fn matches_settings(&self, other: &UpstreamTlsConfig) -> bool {
        self.settings == *other
    }

    /// Performs the handshake and returns whether HTTP/2 was negotiated; `http1_only` does not offer it.
    ///
    /// # Errors
    /// The connection broke, or the server's certificate was rejected.
    pub async fn connect_stream(
        &self,
        stream: TcpStream,
        http1_only: bool,
    ) -> io::Result<(TlsStream<TcpStream>, bool)> {
        let stream = if http1_only {
            let connector = self.connector.with_alpn(vec![HTTP_1_1.to_vec()]);
            connector.connect(self.server_name.clone(), stream).await?
        } else {
            self.connector.connect(self.server_name.clone(), stream).await?
        };
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(H2);
        Ok((stream, is_http2))
    }
}

/// `verify: false`: any certificate is accepted, so its signatures are not checked either.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
