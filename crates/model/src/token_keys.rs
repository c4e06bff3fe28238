//! Parses the public keys that verify tokens: a PEM file with one key, or a JSON Web Key Set (RFC 7517).

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

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
/// The digits of the shortest modulus of 2048 bits in base64url, as a key set writes it.
const MODULUS_DIGITS: usize = 342;

const NOT_TEXT: &str = "is not UTF-8 text";
const PRIVATE: &str = "holds a private key; write the public one";
const CERTIFICATE: &str = "holds a certificate; write the public key in it";

impl TokenKeys {
    /// The keys of a file.
    ///
    /// # Errors
    /// A phrase that follows the file's name.
    pub fn parse(bytes: &[u8]) -> Result<TokenKeys, String> {
        let text = str::from_utf8(bytes).map_err(|_| NOT_TEXT.to_owned())?.trim_start();
        if text.starts_with("-----BEGIN") {
            return parse_pem_key(text).map(TokenKeys);
        }
        match parse_key_set(text)? {
            (_, true) => Err("holds a key that cannot be read".to_owned()),
            (keys, false) => check_key_count(keys),
        }
    }

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

    /// The keys of a set that an issuer answered, for these algorithms alone. A key that cannot be read is skipped.
    ///
    /// # Errors
    /// A phrase that follows the name of the set: "holds no key that can verify a token".
    pub fn parse_fetched(bytes: &[u8], algorithms: &[Algorithm]) -> Result<TokenKeys, String> {
        let (mut keys, _) = parse_key_set(str::from_utf8(bytes).map_err(|_| NOT_TEXT.to_owned())?)?;
        for key in &mut keys {
            key.algorithms.retain(|algorithm| algorithms.contains(algorithm));
        }
        keys.retain(|key| !key.algorithms.is_empty());
        check_key_count(keys)
    }

    /// The number of keys.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Each key by its id, with its algorithms.
    pub fn describe_keys(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|key| format!("{} {:?}", key.id.as_deref().unwrap_or("-"), key.algorithms))
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

#[derive(Deserialize)]
struct WrittenSet {
    keys: Vec<Value>,
}

/// The usable keys of a set, and whether another cannot be read. Encryption keys, symmetric and short ones, and
/// unsupported kinds are skipped.
fn parse_key_set(text: &str) -> Result<(Vec<TokenKey>, bool), String> {
    // The parser's error could quote the file.
    let set: WrittenSet = serde_json::from_str(text)
        .map_err(|error| format!("is neither a PEM key nor a JSON Web Key Set: line {}", error.line()))?;
    let (mut keys, mut has_unreadable) = (Vec::new(), false);
    for written in set.keys {
        let read = serde_json::from_value(written).map_err(drop).and_then(|jwk| read_jwk(&jwk));
        has_unreadable |= read.is_err();
        keys.extend(read.ok().flatten());
    }
    Ok((keys, has_unreadable))
}

/// The key, if it can verify tokens; an error if it cannot be read.
fn read_jwk(jwk: &Jwk) -> Result<Option<TokenKey>, ()> {
    if jwk.common.public_key_use.as_ref().is_some_and(|use_| *use_ != PublicKeyUse::Signature) {
        return Ok(None);
    }
    let mut algorithms = match &jwk.algorithm {
        AlgorithmParameters::RSA(key) if key.n.len() >= MODULUS_DIGITS => RSA.to_vec(),
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => vec![Algorithm::ES256],
            EllipticCurve::P384 => vec![Algorithm::ES384],
            _ => return Ok(None),
        },
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            vec![Algorithm::EdDSA]
        }
        _ => return Ok(None),
    };
    if let Some(only) = jwk.common.key_algorithm {
        algorithms.retain(|algorithm| Algorithm::try_from(only).is_ok_and(|only| only == *algorithm));
    }
    if algorithms.is_empty() {
        return Ok(None);
    }
    let key = DecodingKey::from_jwk(jwk).map_err(drop)?;
    Ok(Some(TokenKey { id: jwk.common.key_id.clone(), algorithms, key }))
}

fn check_key_count(keys: Vec<TokenKey>) -> Result<TokenKeys, String> {
    match keys.len() {
        0 => Err("holds no key that can verify a token".to_owned()),
        1..=KEYS_MAX => Ok(TokenKeys(keys)),
        _ => Err(format!("holds more than {KEYS_MAX} keys")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The modulus of an arbitrary key of 2048 bits, and a coordinate.
    fn modulus() -> String {
        "u1W3mF9Y0s8x".repeat(29)[..MODULUS_DIGITS - 1].to_owned() + "A"
    }

    const N: &str = "u1W3mF9Y0s8x";

    fn served(set: &str) -> Result<Vec<Algorithm>, String> {
        let keys = TokenKeys::parse(set.as_bytes())?;
        Ok(keys.0.iter().flat_map(|key| key.algorithms.clone()).collect())
    }

    #[test]
    fn only_signature_keys_of_a_set_are_used() {
        let long = modulus();
        let set = format!(
            r#"{{"keys":[
                {{"kty":"RSA","use":"enc","alg":"RSA-OAEP","n":"{long}","e":"AQAB","kid":"a"}},
                {{"kty":"RSA","alg":"RSA-OAEP","n":"{long}","e":"AQAB"}},
                {{"kty":"RSA","n":"{N}","e":"AQAB","kid":"short"}},
                {{"kty":"RSA","alg":"XY512","n":"{long}","e":"AQAB"}},
                {{"kty":"oct","alg":"HS256","k":"{N}"}},
                {{"kty":"EC","crv":"P-521","x":"{N}","y":"{N}"}},
                {{"kty":"EC","crv":"secp256k1","x":"{N}","y":"{N}"}},
                {{"kty":"XY","z":1}},
                {{"kty":"RSA","use":"sig","alg":"PS256","n":"{long}","e":"AQAB","kid":"b"}},
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
    fn a_fetched_set_serves_only_the_algorithms_of_its_entry() {
        let (long, bad) = (modulus(), "?".repeat(MODULUS_DIGITS));
        let set = format!(
            r#"{{"keys":[{{"kty":"RSA","n":"{bad}","e":"AQAB"}},
                {{"kty":"RSA","n":"{long}","e":"AQAB","kid":"a","x5c":["x"]}},
                {{"kty":"EC","crv":"P-384","x":"{N}","y":"{N}","kid":"c"}},7]}}"#
        );
        let fetched = |algorithms: &[Algorithm]| TokenKeys::parse_fetched(set.as_bytes(), algorithms);
        let keys = fetched(&[Algorithm::RS256, Algorithm::ES256]).unwrap();
        assert_eq!(keys.describe_keys().collect::<Vec<_>>(), ["a [RS256]"]);
        assert_eq!(fetched(&[Algorithm::EdDSA]).unwrap_err(), "holds no key that can verify a token");
        assert!(served(&set).unwrap_err().contains("a key that cannot be read"), "a file is whole");
        for (text, reason) in [("<html>", "neither a PEM"), ("[]", "neither a PEM"), ("{}", "neither a PEM")]
        {
            let message = TokenKeys::parse_fetched(text.as_bytes(), &RSA).unwrap_err();
            assert!(message.contains(reason), "{text}: {message}");
        }
    }

    #[test]
    fn files_without_a_usable_key_get_a_reason() {
        let bad = "?".repeat(MODULUS_DIGITS);
        let bad = format!("{{\"keys\":[{{\"kty\":\"RSA\",\"n\":\"{bad}\",\"e\":\"AQAB\"}}]}}");
        for (text, reason) in [
            ("", "neither a PEM key nor"),
            ("{\"keys\":[]}", "no key that can verify"),
            (&bad, "a key that cannot be read"),
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
