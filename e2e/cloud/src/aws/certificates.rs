//! What listeners that end TLS have: certificates, a policy, protocols to offer. The data path shows the default
//! certificate to every client; the others are kept and listed.

use super::account::Listener;
use super::error::Refusal;
use super::xml::{el, members, wrap};
use super::{Answer, Call};

const POLICY: &str = "ELBSecurityPolicy-2016-08";
const ALPN: [&str; 5] = [
    "HTTP1Only",
    "HTTP2Only",
    "HTTP2Optional",
    "HTTP2Preferred",
    "None",
];

/// What a call says of TLS, over what was before.
pub(super) struct Tls {
    pub(super) certificates: Vec<String>,
    pub(super) policy: Option<String>,
    pub(super) alpn: Option<String>,
}

impl Call<'_> {
    pub(super) fn tls(&self, protocol: &str, before: Option<&Listener>) -> Result<Tls, Refusal> {
        let asked = self.known_certificates()?;
        let policy = self.form.maybe("SslPolicy").map(str::to_owned);
        let alpn = self
            .form
            .list("AlpnPolicy")
            .first()
            .map(|p| (*p).to_owned());
        if protocol != "TLS" {
            if !asked.is_empty() || policy.is_some() || alpn.is_some() {
                let message =
                    format!("A certificate or policy cannot be specified for {protocol} listeners");
                return Err(Refusal::new("InvalidConfigurationRequest", message));
            }
            return Ok(Tls {
                certificates: Vec::new(),
                policy: None,
                alpn: None,
            });
        }
        if asked.len() > 1 {
            return Err(Refusal::validation(
                "Only one default certificate is allowed",
            ));
        }
        if alpn
            .as_ref()
            .is_some_and(|policy| !ALPN.contains(&policy.as_str()))
        {
            return Err(Refusal::new("ALPNPolicyNotFound", "no such ALPN policy"));
        }
        let mut certificates = asked;
        let old = before
            .map(|b| b.certificates.as_slice())
            .unwrap_or_default();
        // A new default one takes the place of the old; the others stay.
        certificates.extend(old.iter().skip(certificates.len()).cloned());
        if certificates.is_empty() {
            let message = "A certificate must be specified for TLS listeners";
            return Err(Refusal::new("CertificateNotFound", message));
        }
        let policy = policy.or(before.and_then(|b| b.policy.clone()));
        Ok(Tls {
            certificates,
            policy: Some(policy.unwrap_or(POLICY.to_owned())),
            alpn: alpn.or(before.and_then(|b| b.alpn.clone())),
        })
    }

    fn asked_certificates(&self) -> Result<Vec<String>, Refusal> {
        let stems = self.form.entries("Certificates").into_iter();
        let arn = |stem: String| self.form.need(&format!("{stem}.CertificateArn"));
        stems.map(|stem| Ok(arn(stem)?.to_owned())).collect()
    }

    fn known_certificates(&self) -> Result<Vec<String>, Refusal> {
        let arns = self.asked_certificates()?;
        let known = |arn: &&String| self.account.certificates.contains_key(*arn);
        match arns.iter().find(|arn| !known(arn)) {
            None => Ok(arns),
            Some(arn) => {
                let message = format!("Certificate '{arn}' not found");
                Err(Refusal::new("CertificateNotFound", message))
            }
        }
    }

    /// The TLS listener of a call about certificates beside the default one, and those.
    fn more(&mut self) -> Result<(&mut Listener, Vec<String>), Refusal> {
        let arn = self.form.need("ListenerArn")?;
        let asked = self.asked_certificates()?;
        let listener = self.account.listener(arn)?;
        if listener.certificates.is_empty() {
            let message = "certificates are for TLS listeners";
            return Err(Refusal::validation(message));
        }
        Ok((listener, asked))
    }

    pub(super) fn add_certificates(&mut self) -> Answer {
        self.known_certificates()?;
        let (listener, asked) = self.more()?;
        for arn in &asked {
            if !listener.certificates.contains(arn) {
                listener.certificates.push(arn.clone());
            }
        }
        let of = |arn: &String| el("CertificateArn", arn) + &el("IsDefault", false);
        Ok(members("Certificates", asked.iter().map(of)))
    }

    pub(super) fn remove_certificates(&mut self) -> Answer {
        let (listener, asked) = self.more()?;
        if listener
            .certificates
            .first()
            .is_some_and(|first| asked.contains(first))
        {
            let message = "The default certificate cannot be removed";
            return Err(Refusal::new("OperationNotPermitted", message));
        }
        listener.certificates.retain(|arn| !asked.contains(arn));
        Ok(String::new())
    }

    pub(super) fn describe_certificates(&mut self) -> Answer {
        let arn = self.form.need("ListenerArn")?;
        let all = self.account.listener(arn)?.certificates.clone();
        let of =
            |(at, arn): (usize, &String)| el("CertificateArn", arn) + &el("IsDefault", at == 0);
        Ok(members("Certificates", all.iter().enumerate().map(of)))
    }
}

pub(super) fn tls_xml(listener: &Listener) -> String {
    let Some(first) = listener.certificates.first() else {
        return String::new();
    };
    let policy = listener.policy.iter().map(|policy| el("SslPolicy", policy));
    let alpn = listener.alpn.iter();
    let alpn = alpn.map(|policy| wrap("AlpnPolicy", el("member", policy)));
    members("Certificates", [el("CertificateArn", first)].into_iter())
        + &policy.chain(alpn).collect::<String>()
}
