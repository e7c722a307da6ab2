//! A client that shows who it is by a certificate (AZ-452): a JSON Web Token of its own, signed by the certificate's key
//! (Microsoft identity platform, "Certificate credentials"; RFC 7523).

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use onehop_core::time::Time;
use rustls::SignatureScheme;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// How long an assertion may be used.
const LASTS: Duration = Duration::from_mins(10);

/// Assertion that this client is who it says, for a token endpoint. `file` has the certificate and its private key as PEM.
///
/// # Errors
/// What is wrong with the file, and what to do about it.
pub(super) fn assertion(
    file: &[u8],
    endpoint: &str,
    client: &str,
    now: Time,
) -> Result<String, String> {
    let certificate = CertificateDer::from_pem_slice(file)
        .map_err(|error| format!("has no certificate as PEM ({error}){CONVERT}"))?;
    let key = PrivateKeyDer::from_pem_slice(file)
        .map_err(|error| format!("has no unencrypted private key as PEM ({error}){CONVERT}"))?;
    let key = any_supported_type(&key)
        .map_err(|error| format!("has a private key that cannot be used: {error}"))?;
    let signer = key
        .choose_scheme(&[SignatureScheme::RSA_PSS_SHA256])
        .ok_or("has a private key that is not RSA, which Entra ID asks for")?;
    let header = json!({
        "alg": "PS256",
        "typ": "JWT",
        "x5t#S256": URL_SAFE_NO_PAD.encode(Sha256::digest(&certificate)),
    });
    let seconds = now.as_millis() / 1000;
    let once = Sha256::digest(format!("{client} {}", now.as_millis()));
    let claims = json!({
        "aud": endpoint,
        "iss": client,
        "sub": client,
        "jti": URL_SAFE_NO_PAD.encode(once),
        "nbf": seconds,
        "exp": seconds + i64::try_from(LASTS.as_secs()).unwrap_or(i64::MAX),
    });
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(&header), part(&claims));
    let signature = signer
        .sign(signed.as_bytes())
        .map_err(|error| format!("has a private key that does not sign: {error}"))?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

/// What helps with other formats.
const CONVERT: &str =
    "; a PFX file becomes one by: openssl pkcs12 -in FILE.pfx -out FILE.pem -nodes";

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: &str = "https://login.example/t/oauth2/v2.0/token";
    const NOW: Time = Time::from_millis(1_000_000_500);

    fn pem(key: &rcgen::KeyPair) -> String {
        let of = rcgen::CertificateParams::new(Vec::new()).unwrap();
        of.self_signed(key).unwrap().pem() + &key.serialize_pem()
    }

    #[test]
    fn az452_a_certificate_signs_who_the_client_is() {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
        let file = pem(&key);
        let made = assertion(file.as_bytes(), ENDPOINT, "c", NOW).unwrap();
        let (signed, signature) = made.rsplit_once('.').unwrap();
        let (header, claims) = signed.split_once('.').unwrap();
        let read = |part: &str| -> Value {
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
        };
        let certificate = CertificateDer::from_pem_slice(file.as_bytes()).unwrap();
        let print = URL_SAFE_NO_PAD.encode(Sha256::digest(&certificate));
        let header = read(header);
        assert_eq!(
            header,
            json!({"alg": "PS256", "typ": "JWT", "x5t#S256": print})
        );
        let claims = read(claims);
        for (claim, wanted) in [
            ("aud", json!(ENDPOINT)),
            ("iss", json!("c")),
            ("sub", json!("c")),
            ("nbf", json!(1_000_000)),
            ("exp", json!(1_000_600)),
        ] {
            assert_eq!(claims[claim], wanted, "AZ-452: {claim}");
        }
        // RFC 7518, PS256: verified with the certificate's own public key.
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let known = provider.signature_verification_algorithms.mapping;
        let (_, ways) = known
            .iter()
            .find(|(scheme, _)| *scheme == SignatureScheme::RSA_PSS_SHA256)
            .unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        let verified = ways.first().unwrap().verify_signature(
            key.public_key_raw(),
            signed.as_bytes(),
            &signature,
        );
        assert!(verified.is_ok(), "AZ-452: {verified:?}");
        let later = assertion(file.as_bytes(), ENDPOINT, "c", NOW + LASTS).unwrap();
        assert_ne!(later, made, "each is used once");
    }

    #[test]
    fn az452_what_is_wrong_with_the_file_is_said() {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = pem(&key);
        let alone = certificate.split("-----BEGIN PRIVATE").next().unwrap();
        for (file, wanted) in [
            ("", "has no certificate as PEM"),
            ("0\u{82}PFX", "openssl pkcs12"),
            (alone, "has no unencrypted private key"),
            (&certificate, "is not RSA"),
        ] {
            let said = assertion(file.as_bytes(), ENDPOINT, "c", NOW).unwrap_err();
            assert!(said.contains(wanted), "{said}");
        }
    }
}
