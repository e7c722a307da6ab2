//! The certificate of a port of metrics: made by the process itself, for itself, and made anew before it ends. Nobody vouches
//! for it, so scrapers do not verify it: it keeps tokens and numbers from those who listen, not from those who interpose
//! (docs/threat-model.md). Nothing of it is kept anywhere.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onehop_core::time::Time;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::clock::Clock;

/// From the making of one to its end.
const LIFETIME: Duration = Duration::from_hours(30 * 24);
/// From the making of one to the making of the next, well before its end.
const RENEW_AFTER: Duration = Duration::from_hours(20 * 24);
/// Clocks of other machines may be late by this much.
const SKEW: Duration = Duration::from_hours(1);

/// No certificate could be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum MakeError {
    #[error("cannot make a certificate for metrics: {0}")]
    Make(#[from] rcgen::Error),
    #[error("cannot use the key of a certificate for metrics: {0}")]
    Key(#[from] rustls::Error),
}

struct Kept {
    renewed_at: Time,
    key: Arc<CertifiedKey>,
}

/// Shows a certificate of its own.
pub(super) struct OwnCertificate {
    name: String,
    clock: Clock,
    kept: Mutex<Option<Kept>>,
}

impl std::fmt::Debug for OwnCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key is nobody's to read.
        write!(f, "the certificate of {}", self.name)
    }
}

impl OwnCertificate {
    pub(super) fn new(name: &str, clock: Clock) -> Self {
        Self {
            name: name.to_owned(),
            clock,
            kept: Mutex::default(),
        }
    }

    /// What is shown now. Where no new one can be made the last one is shown on.
    pub(super) fn shown(&self) -> Option<Arc<CertifiedKey>> {
        let now = self.clock.now();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_none_or(|kept| kept.renewed_at <= now) {
            match make(&self.name, now) {
                Ok(key) => {
                    let renewed_at = now + RENEW_AFTER;
                    let key = Arc::new(key);
                    *kept = Some(Kept { renewed_at, key });
                }
                Err(error) => tracing::error!(%error, "metrics have no new certificate"),
            }
        }
        kept.as_ref().map(|kept| Arc::clone(&kept.key))
    }
}

impl ResolvesServerCert for OwnCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.shown()
    }
}

fn make(name: &str, now: Time) -> Result<CertifiedKey, MakeError> {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since_1970 = |time: Time| Duration::from_millis(time.as_millis().try_into().unwrap_or(0));
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.not_before = epoch + since_1970(now - SKEW);
    params.not_after = epoch + since_1970(now + LIFETIME);
    let pair = KeyPair::generate()?;
    let chain = vec![params.self_signed(&pair)?.der().clone()];
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(pair.serialize_der()));
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key)?;
    Ok(CertifiedKey::new(chain, key))
}
