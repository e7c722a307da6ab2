//! What the webhook is served with, and how one certificate follows another without a moment in which a server shows one
//! that the API server does not trust yet (C-64, C-77). Pure, but for the keys.
//!
//! Each certificate has an authority of its own, whose key is forgotten once it has signed. A new pair is trusted first,
//! served later, and the authority of the old one is trusted until that has expired: whichever of two replicas answers,
//! with whichever of two pairs, is believed.

use std::time::Duration;

use onehop_core::time::Time;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};

/// Clocks of other machines may be late by this much.
const SKEW: Duration = Duration::from_hours(1);

/// How long certificates last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// From the making of one to its end.
    pub lifetime: Duration,
    /// How long before its end the next one is made.
    pub renew_before: Duration,
    /// How long the next one is trusted before it is served: API servers hear of a configuration with a delay.
    pub settle: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            lifetime: Duration::from_hours(90 * 24),
            renew_before: Duration::from_hours(30 * 24),
            settle: Duration::from_mins(2),
        }
    }
}

/// A certificate, its key, and the authority that vouches for it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pair {
    /// PEM.
    pub certificate: String,
    /// PKCS 8 as PEM.
    pub key: String,
    /// PEM.
    pub authority: String,
    /// When it ends.
    pub expires: Time,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key is nobody's to read.
        write!(f, "a certificate until {}", self.expires)
    }
}

/// A pair that is to be served next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Next {
    /// The pair.
    pub pair: Pair,
    /// Since when it is trusted everywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trusted_since: Option<Time>,
}

/// An authority whose certificate somebody may still show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Former {
    /// PEM.
    pub authority: String,
    /// When its certificate ends.
    pub expires: Time,
}

/// Everything that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// What is served.
    pub serving: Pair,
    /// What is served next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Next>,
    /// Who vouched for what was served before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<Former>,
}

/// No certificate could be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a certificate for the webhook: {0}")]
pub struct MakeError(#[from] rcgen::Error);

impl Pair {
    /// Makes one for these host names.
    pub fn make(names: &[String], now: Time, lifetime: Duration) -> Result<Self, MakeError> {
        let expires = now + lifetime;
        let valid = |params: &mut CertificateParams| {
            let epoch = rcgen::date_time_ymd(1970, 1, 1);
            params.not_before = epoch + since_1970(now - SKEW);
            params.not_after = epoch + since_1970(expires);
        };
        let mut authority = CertificateParams::new(Vec::new())?;
        let subject = &mut authority.distinguished_name;
        subject.push(DnType::CommonName, format!("onehop webhook, {now}"));
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        valid(&mut authority);
        let signer = KeyPair::generate()?;
        let authority_pem = authority.self_signed(&signer)?.pem();
        let issuer = Issuer::new(authority, signer);
        let mut params = CertificateParams::new(names.to_vec())?;
        let subject = &mut params.distinguished_name;
        subject.push(DnType::CommonName, "onehop webhook");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        valid(&mut params);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?.pem();
        Ok(Self {
            certificate,
            key: key.serialize_pem(),
            authority: authority_pem,
            expires,
        })
    }
}

fn since_1970(time: Time) -> Duration {
    Duration::from_millis(time.as_millis().try_into().unwrap_or(0))
}

impl State {
    /// What is kept from here on, if that is something else. `trusted`: what API servers are told to trust. `make` makes a
    /// pair.
    pub fn after(
        kept: Option<&Self>,
        trusted: &str,
        now: Time,
        times: &Times,
        make: impl FnOnce() -> Result<Pair, MakeError>,
    ) -> Result<Option<Self>, MakeError> {
        let Some(kept) = kept.filter(|kept| kept.serving.expires > now) else {
            let serving = make()?;
            return Ok(Some(Self {
                serving,
                next: None,
                former: Vec::new(),
            }));
        };
        let mut new = kept.clone();
        new.former.retain(|former| former.expires > now);
        match &mut new.next {
            None if kept.serving.expires - times.renew_before <= now => {
                let pair = make()?;
                new.next = Some(Next {
                    pair,
                    trusted_since: None,
                });
            }
            None => {}
            Some(next) => match next.trusted_since {
                None if trusted.contains(&next.pair.authority) => next.trusted_since = Some(now),
                Some(since) if now.since(since) >= times.settle => {
                    let pair = next.pair.clone();
                    let old = std::mem::replace(&mut new.serving, pair);
                    new.former.push(Former {
                        authority: old.authority,
                        expires: old.expires,
                    });
                    new.next = None;
                }
                _ => {}
            },
        }
        Ok((new != *kept).then_some(new))
    }

    /// When time alone changes what is kept.
    pub fn next_change(&self, times: &Times) -> Time {
        let next = match &self.next {
            None => self.serving.expires - times.renew_before,
            Some(next) => match next.trusted_since {
                Some(since) => since + times.settle,
                None => self.serving.expires,
            },
        };
        let former = self.former.iter().map(|former| former.expires);
        former.chain([next]).min().unwrap_or(next)
    }

    /// Everybody who is trusted, as PEM: a certificate of theirs may be shown.
    pub fn bundle(&self) -> String {
        let next = self.next.iter().map(|next| &next.pair.authority);
        let former = self.former.iter().map(|former| &former.authority);
        let all = [&self.serving.authority]
            .into_iter()
            .chain(next)
            .chain(former);
        all.map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_millis(1_800_000_000_000);
    const DAY: Duration = Duration::from_hours(24);

    fn pair(n: u32, expires: Time) -> Pair {
        Pair {
            certificate: format!("certificate {n}\n"),
            key: String::new(),
            authority: format!("authority {n}\n"),
            expires,
        }
    }

    /// Lives through a year of rotations, looking every hour; API servers hear of a new bundle an hour late.
    #[test]
    fn c77_whatever_is_served_is_trusted_and_has_been_for_long_enough() {
        let times = Times::default();
        let (mut made, mut kept) = (0, None::<State>);
        let (mut trusted, mut served) = (String::new(), Vec::new());
        let mut trusted_since = std::collections::BTreeMap::new();
        for hour in 0..365 * 24 {
            let now = NOW + Duration::from_hours(hour);
            // Another replica may be one step behind.
            let before = kept.clone();
            let make = || {
                made += 1;
                Ok(pair(made, now + times.lifetime))
            };
            if let Some(new) = State::after(kept.as_ref(), &trusted, now, &times, make).unwrap() {
                kept = Some(new);
            }
            let state = kept.as_ref().unwrap();
            assert!(
                state.serving.expires > now,
                "C-77: none that has ended is served"
            );
            assert!(
                state.next_change(&times) > now - DAY,
                "it is looked at in time"
            );
            if served.last() != Some(&state.serving.certificate) {
                served.push(state.serving.certificate.clone());
                let first = served.len() == 1;
                let since = trusted_since.get(&state.serving.authority).copied();
                let settled = since.is_some_and(|since| now.since(since) >= times.settle);
                assert!(first || settled, "C-77: trusted first, served later");
            }
            for shown in before.iter().chain([state]).map(|state| &state.serving) {
                let first = served.len() == 1;
                assert!(
                    first || trusted.contains(&shown.authority),
                    "C-77: at hour {hour}"
                );
            }
            trusted = state.bundle();
            for authority in trusted.lines() {
                trusted_since.entry(format!("{authority}\n")).or_insert(now);
            }
            assert!(state.former.len() <= 1, "what has ended is forgotten");
        }
        assert!(served.len() >= 6, "it did rotate: {served:?}");
    }

    #[test]
    fn c77_one_that_nobody_trusts_yet_is_not_served() {
        let times = Times::default();
        let kept = State {
            serving: pair(1, NOW + DAY),
            next: None,
            former: Vec::new(),
        };
        let never = || Err(MakeError(rcgen::Error::KeyGenerationUnavailable));
        let made = State::after(Some(&kept), "authority 1\n", NOW, &times, || {
            Ok(pair(2, NOW + times.lifetime))
        });
        let made = made.unwrap().unwrap();
        assert_eq!(made.serving, kept.serving);
        assert_eq!(made.bundle(), "authority 1\nauthority 2\n", "C-77");
        let later = NOW + Duration::from_hours(1);
        let same = State::after(Some(&made), "authority 1\n", later, &times, never);
        assert_eq!(
            same.unwrap(),
            None,
            "C-77: the configuration does not have it"
        );
        let same = State::after(Some(&kept), "", NOW, &times, never);
        assert!(same.is_err(), "nothing is made silently");
    }

    #[test]
    fn c64_a_made_certificate_is_good_for_its_names_and_time_under_its_authority() {
        use rustls::client::danger::ServerCertVerifier;
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
        let name = "onehop-webhook.kube-system.svc".to_owned();
        let pair = Pair::make(std::slice::from_ref(&name), NOW, DAY).unwrap();
        let read = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(read(&pair.authority)).unwrap();
        let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier =
            rustls::client::WebPkiServerVerifier::builder_with_provider(roots.into(), provider);
        let verifier = verifier.build().unwrap();
        let good = |name: &str, at: Time| {
            let name = ServerName::try_from(name.to_owned()).unwrap();
            let at = Duration::from_millis(at.as_millis().try_into().unwrap());
            let at = UnixTime::since_unix_epoch(at);
            let leaf = read(&pair.certificate);
            verifier
                .verify_server_cert(&leaf, &[], &name, &[], at)
                .is_ok()
        };
        assert!(good(&name, NOW) && good(&name, NOW - SKEW / 2), "C-64");
        assert!(good(&name, NOW + DAY - Duration::from_secs(1)), "C-64");
        assert!(
            !good(&name, NOW + DAY + Duration::from_secs(1)),
            "C-77: it ends"
        );
        assert!(!good("other.kube-system.svc", NOW), "C-64");
        assert!(
            !format!("{pair:?}").contains("PRIVATE"),
            "keys are not logged"
        );
    }
}
