//! The public keys that tokens are verified by: a PEM file with one, or a JSON Web Key Set (RFC 7517).

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};

use super::file::FileContent;

/// Public keys, each with the algorithms it may verify.
#[derive(Debug, Clone)]
pub struct TokenKeys(Vec<TokenKey>);

#[derive(Debug, Clone)]
pub struct TokenKey {
    /// `None` = it serves tokens whatever key they name.
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

impl TokenKeys {
    /// The keys that may have signed a token of this algorithm and key id.
    pub fn fitting<'a>(
        &'a self,
        algorithm: Algorithm,
        id: Option<&'a str>,
    ) -> impl Iterator<Item = &'a DecodingKey> {
        let named = move |key: &&TokenKey| match (key.id.as_deref(), id) {
            (Some(own), Some(asked)) => own == asked,
            _ => true,
        };
        self.0.iter().filter(named).filter(move |key| key.algorithms.contains(&algorithm)).map(|key| &key.key)
    }

    /// Whether some key can verify tokens of `algorithm`.
    pub fn serve(&self, algorithm: Algorithm) -> bool {
        self.fitting(algorithm, None).next().is_some()
    }
}

impl FileContent for TokenKeys {
    const BYTES_MAX: u64 = 1 << 20;

    fn parse(bytes: &[u8]) -> Result<TokenKeys, String> {
        let text = str::from_utf8(bytes).map_err(|_| "is not UTF-8 text".to_owned())?.trim_start();
        let keys = if text.starts_with("-----BEGIN") { pem(text)? } else { key_set(text)? };
        Ok(TokenKeys(keys))
    }
}

fn pem(text: &str) -> Result<Vec<TokenKey>, String> {
    if text.contains("PRIVATE KEY") {
        return Err("holds a private key; write the public one".to_owned());
    }
    if text.contains("BEGIN CERTIFICATE") {
        return Err("holds a certificate; write the public key in it".to_owned());
    }
    if text.matches("-----BEGIN").count() > 1 {
        return Err("holds several keys; write them as a JSON Web Key Set".to_owned());
    }
    let bytes = text.as_bytes();
    // Each of these takes nothing but keys of its own kind.
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

/// Keys for encryption, symmetric keys and kinds that nobody here can use are passed over.
fn key_set(text: &str) -> Result<Vec<TokenKey>, String> {
    // The error of the parser could tell a piece of the file.
    let set: JwkSet = serde_json::from_str(text)
        .map_err(|error| format!("is neither a PEM key nor a JSON Web Key Set: line {}", error.line()))?;
    let mut keys = Vec::new();
    for jwk in &set.keys {
        if jwk.common.public_key_use.as_ref().is_some_and(|use_| *use_ != PublicKeyUse::Signature) {
            continue;
        }
        let mut algorithms = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => RSA.to_vec(),
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
                vec![Algorithm::ES256]
            }
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => {
                vec![Algorithm::ES384]
            }
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                vec![Algorithm::EdDSA]
            }
            _ => continue,
        };
        if let Some(only) = jwk.common.key_algorithm {
            algorithms.retain(|algorithm| Algorithm::try_from(only).is_ok_and(|only| only == *algorithm));
        }
        let key = DecodingKey::from_jwk(jwk).map_err(|_| "holds a key that cannot be read".to_owned())?;
        if !algorithms.is_empty() {
            keys.push(TokenKey { id: jwk.common.key_id.clone(), algorithms, key });
        }
    }
    match keys.len() {
        0 => Err("holds no key that can verify a token".to_owned()),
        1..=KEYS_MAX => Ok(keys),
        _ => Err(format!("holds more than {KEYS_MAX} keys")),
    }
}
