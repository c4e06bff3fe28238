//! Parses the public keys that verify tokens: a PEM file with one key, or a JSON Web Key Set (RFC 7517).

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};

use sluicegate_base::file::FileContent;

/// Public keys, each with its algorithms.
#[derive(Debug, Clone)]
pub struct TokenKeys(Vec<TokenKey>);

#[derive(Debug, Clone)]
pub(crate) struct TokenKey {
    /// `None` = the key serves tokens with any key id.
    pub id: Option<String>,
    pub algorithms: Vec<Algorithm>,
    pub key: DecodingKey,
}

const RSA: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];
const KEYS_MAX: usize = 256;

const PRIVATE: &str = "holds a private key; write the public one";
const CERTIFICATE: &str = "holds a certificate; write the public key in it";

impl TokenKeys {
    /// The keys that may have signed a token of this algorithm and key id.
    pub fn keys_for<'a>(
        &'a self,
        algorithm: Algorithm,
        id: Option<&'a str>,
    ) -> impl Iterator<Item = &'a DecodingKey> {
        let named = move |key: &&TokenKey| match (key.id.as_deref(), id) {
            (Some(own), Some(wanted)) => own == wanted,
            _ => true,
        };
        self.0.iter().filter(named).filter(move |key| key.algorithms.contains(&algorithm)).map(|key| &key.key)
    }

    /// True if a key can verify tokens of `algorithm`.
    pub fn can_verify(&self, algorithm: Algorithm) -> bool {
        self.keys_for(algorithm, None).next().is_some()
    }
}

impl FileContent for TokenKeys {
    const BYTES_MAX: u64 = 1 << 20;

    fn suggest_content(reason: &str, name: &str) -> Option<String> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte);
        let name = if name.bytes().all(is_plain) { name } else { "FILE" };
        Some(match reason {
            PRIVATE => {
                format!("run openssl pkey -in {name} -pubout -out public.pem, and write jwks: public.pem")
            }
            CERTIFICATE => {
                format!("run openssl x509 -in {name} -pubkey -noout > public.pem, and write jwks: public.pem")
            }
            _ if reason.starts_with("holds")
                || reason.starts_with("is neither")
                || reason.contains("UTF-8") =>
            {
                "name a PEM file with one public key, or a JSON Web Key Set".to_owned()
            }
            _ => return None,
        })
    }

    fn parse(bytes: &[u8]) -> Result<TokenKeys, String> {
        let text = str::from_utf8(bytes).map_err(|_| "is not UTF-8 text".to_owned())?.trim_start();
        let keys = if text.starts_with("-----BEGIN") { parse_pem_key(text)? } else { parse_key_set(text)? };
        Ok(TokenKeys(keys))
    }
}

fn parse_pem_key(text: &str) -> Result<Vec<TokenKey>, String> {
    if text.contains("PRIVATE KEY") {
        return Err(PRIVATE.to_owned());
    }
    if text.contains("BEGIN CERTIFICATE") {
        return Err(CERTIFICATE.to_owned());
    }
    if text.matches("-----BEGIN").count() > 1 {
        return Err("holds several keys; write them as a JSON Web Key Set".to_owned());
    }
    let bytes = text.as_bytes();
    // Each of these functions accepts only keys of its own kind.
    let (key, algorithms) = if let Ok(key) = DecodingKey::from_ec_pem(bytes) {
        let curve = match key.try_get_as_bytes().map(<[u8]>::len) {
            Ok(65) => Algorithm::ES256,
            Ok(97) => Algorithm::ES384,
            _ => return Err("holds a key of a curve that is neither P-256 nor P-384".to_owned()),
        };
        (key, vec![curve])
    } else if let Ok(key) = DecodingKey::from_ed_pem(bytes) {
        (key, vec![Algorithm::EdDSA])
    } else if let Ok(key) = DecodingKey::from_rsa_pem(bytes) {
        (key, RSA.to_vec())
    } else {
        return Err("holds no public key that can be read".to_owned());
    };
    Ok(vec![TokenKey { id: None, algorithms, key }])
}

/// Skips encryption keys, symmetric keys and unsupported kinds.
fn parse_key_set(text: &str) -> Result<Vec<TokenKey>, String> {
    // The parser's error could quote the file.
    let set: JwkSet = serde_json::from_str(text)
        .map_err(|error| format!("is neither a PEM key nor a JSON Web Key Set: line {}", error.line()))?;
    let mut keys = Vec::new();
    for jwk in &set.keys {
        if jwk.common.public_key_use.as_ref().is_some_and(|use_| *use_ != PublicKeyUse::Signature) {
            continue;
        }
        let mut algorithms = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => RSA.to_vec(),
            AlgorithmParameters::EllipticCurve(key) => match key.curve {
                EllipticCurve::P256 => vec![Algorithm::ES256],
                EllipticCurve::P384 => vec![Algorithm::ES384],
                _ => continue,
            },
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                vec![Algorithm::EdDSA]
            }
            _ => continue,
        };
        if let Some(only) = jwk.common.key_algorithm {
            algorithms.retain(|algorithm| Algorithm::try_from(only).is_ok_and(|only| only == *algorithm));
        }
        if !algorithms.is_empty() {
            let key = DecodingKey::from_jwk(jwk).map_err(|_| "holds a key that cannot be read".to_owned())?;
            keys.push(TokenKey { id: jwk.common.key_id.clone(), algorithms, key });
        }
    }
    match keys.len() {
        0 => Err("holds no key that can verify a token".to_owned()),
        1..=KEYS_MAX => Ok(keys),
        _ => Err(format!("holds more than {KEYS_MAX} keys")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The modulus of an arbitrary key.
    const N: &str = "u1W3mF9Y0s8x";

    fn served(set: &str) -> Result<Vec<Algorithm>, String> {
        let keys = TokenKeys::parse(set.as_bytes())?;
        Ok(keys.0.iter().flat_map(|key| key.algorithms.clone()).collect())
    }

    #[test]
    fn only_signature_keys_of_a_set_are_used() {
        let set = format!(
            r#"{{"keys":[
                {{"kty":"RSA","use":"enc","alg":"RSA-OAEP","n":"{N}","e":"AQAB","kid":"a"}},
                {{"kty":"RSA","alg":"RSA-OAEP","n":"{N}","e":"AQAB"}},
                {{"kty":"RSA","alg":"XY512","n":"{N}","e":"AQAB"}},
                {{"kty":"oct","alg":"HS256","k":"{N}"}},
                {{"kty":"EC","crv":"P-521","x":"{N}","y":"{N}"}},
                {{"kty":"EC","crv":"secp256k1","x":"{N}","y":"{N}"}},
                {{"kty":"XY","z":1}},
                {{"kty":"RSA","use":"sig","alg":"PS256","n":"{N}","e":"AQAB","kid":"b"}},
                {{"kty":"EC","crv":"P-384","x":"{N}","y":"{N}","kid":"c"}},
                {{"kty":"OKP","crv":"Ed25519","x":"{N}"}}
            ]}}"#
        );
        assert_eq!(served(&set).unwrap(), [Algorithm::PS256, Algorithm::ES384, Algorithm::EdDSA]);
        let keys = TokenKeys::parse(set.as_bytes()).unwrap();
        let fitting = |algorithm, id| keys.keys_for(algorithm, id).count();
        assert_eq!((fitting(Algorithm::PS256, Some("b")), fitting(Algorithm::PS256, None)), (1, 1));
        assert_eq!((fitting(Algorithm::PS256, Some("c")), fitting(Algorithm::RS256, Some("b"))), (0, 0));
        assert_eq!(fitting(Algorithm::EdDSA, Some("x")), 1, "a key without an id serves all");
    }

    #[test]
    fn files_without_a_usable_key_get_a_reason() {
        for (text, reason) in [
            ("", "neither a PEM key nor"),
            ("{\"keys\":[]}", "no key that can verify"),
            ("{\"keys\":[{\"kty\":\"RSA\",\"n\":\"?\",\"e\":\"AQAB\"}]}", "a key that cannot be read"),
            (
                "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
                "no public key that can be read",
            ),
            ("-----BEGIN CERTIFICATE-----\n", "a certificate"),
            ("-----BEGIN RSA PRIVATE KEY-----\n", "a private key"),
            ("-----BEGIN PUBLIC KEY-----\n-----BEGIN PUBLIC KEY-----\n", "several keys"),
        ] {
            let message = served(text).unwrap_err();
            assert!(message.contains(reason), "{text}: {message}");
        }
        assert!(TokenKeys::parse(b"\xff").unwrap_err().contains("UTF-8"));
    }

    #[test]
    fn a_pem_key_serves_what_its_kind_can() {
        let served = |pem: &[u8]| served(str::from_utf8(pem).unwrap()).unwrap();
        assert_eq!(served(include_bytes!("../../../tests/keys/rsa.pub.pem")), RSA);
        assert_eq!(served(include_bytes!("../../../tests/keys/ec.pub.pem")), [Algorithm::ES256]);
        assert_eq!(served(include_bytes!("../../../tests/keys/ed.pub.pem")), [Algorithm::EdDSA]);
    }
}
