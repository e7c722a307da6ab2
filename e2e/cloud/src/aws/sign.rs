//! Signature Version 4, checked as AWS does, written apart from any client's code.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, Method, Uri};
use onehop_core::time::Time;
use sha2::{Digest, Sha256};

use super::error::Refusal;

/// Longest difference between the request's time and ours, in milliseconds.
const SKEW_MS: i64 = 5 * 60 * 1000;

/// What a signature is for.
pub(super) struct Scope {
    /// `ec2` or `elasticloadbalancing`.
    pub(super) service: String,
}

/// Checks a request; the error comes with the service, as far as it is known.
pub(super) fn verify(
    keys: &BTreeMap<String, String>,
    now: Time,
    (method, uri, headers): (&Method, &Uri, &HeaderMap),
    body: &[u8],
) -> Result<Scope, (String, Refusal)> {
    let header = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("")
    };
    let parts = parts(header("authorization"));
    let scope: Vec<&str> = parts
        .get("Credential")
        .copied()
        .unwrap_or("")
        .split('/')
        .collect();
    let [key, date, region, service, "aws4_request"] = scope.as_slice() else {
        let refusal = Refusal::new("MissingAuthenticationToken", "the request is not signed");
        return Err((String::new(), refusal));
    };
    let wrong = |code, message: &str| Err(((*service).to_owned(), Refusal::new(code, message)));
    let Some(secret) = keys.get(*key) else {
        return wrong("InvalidClientTokenId", "no such access key");
    };
    let time = header("x-amz-date");
    if !time.starts_with(date) || !is_near(time, now) {
        return wrong("RequestExpired", "the request's time is not now");
    }
    let names = parts.get("SignedHeaders").copied().unwrap_or("");
    let line = |name: &str| {
        let value: Vec<_> = header(name).split_whitespace().collect();
        format!("{name}:{}\n", value.join(" "))
    };
    let canonical = names.split(';').map(line).collect::<Vec<_>>().concat();
    let request = format!(
        "{method}\n{}\n{}\n{canonical}\n{names}\n{}",
        uri.path(),
        uri.query().unwrap_or(""),
        hex(&Sha256::digest(body))
    );
    let scope = format!("{date}/{region}/{service}/aws4_request");
    let text = format!(
        "AWS4-HMAC-SHA256\n{time}\n{scope}\n{}",
        hex(&Sha256::digest(request.as_bytes()))
    );
    let mut signing = format!("AWS4{secret}").into_bytes();
    for part in [*date, *region, *service, "aws4_request"] {
        signing = hmac(&signing, part.as_bytes());
    }
    if hex(&hmac(&signing, text.as_bytes())) != parts.get("Signature").copied().unwrap_or("") {
        return wrong(
            "SignatureDoesNotMatch",
            "the signature is not that of this request",
        );
    }
    Ok(Scope {
        service: (*service).to_owned(),
    })
}

fn parts(header: &str) -> BTreeMap<&str, &str> {
    let list = header.strip_prefix("AWS4-HMAC-SHA256 ").unwrap_or("");
    list.split(',')
        .filter_map(|part| part.trim().split_once('='))
        .collect()
}

/// `20260102T030405Z` against the clock.
fn is_near(time: &str, now: Time) -> bool {
    let Some((date, of_day)) = time.trim_end_matches('Z').split_once('T') else {
        return false;
    };
    let (Some(y), Some(mo), Some(d)) = (date.get(..4), date.get(4..6), date.get(6..)) else {
        return false;
    };
    let (Some(h), Some(mi), Some(s)) = (of_day.get(..2), of_day.get(2..4), of_day.get(4..)) else {
        return false;
    };
    let written = format!("{y}-{mo}-{d}T{h}:{mi}:{s}Z").parse::<Time>();
    written.is_ok_and(|at| (at.as_millis() - now.as_millis()).abs() <= SKEW_MS)
}

fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 64;
    let mut padded = [0_u8; BLOCK];
    let short = if key.len() > BLOCK {
        Sha256::digest(key).to_vec()
    } else {
        key.to_vec()
    };
    padded[..short.len()].copy_from_slice(&short);
    let with = |pad: u8, rest: &[u8]| {
        let mut hash = Sha256::new();
        hash.update(padded.map(|byte| byte ^ pad));
        hash.update(rest);
        hash.finalize().to_vec()
    };
    with(0x5c, &with(0x36, text))
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hmac_agrees_with_rfc_4231() {
        let mac = hmac(b"Jefe", b"what do ya want for nothing?");
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(hex(&mac), expected);
    }
}
