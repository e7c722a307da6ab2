//! Certificates and kubeconfigs made at run time, for this server and for the real control plane of the harness.
//!
//! Nothing is read from or kept on disk here; a world writes what its programs need into its own folder.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, DnValue, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// An authority that signs the certificates of one cluster.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key.
pub struct Issued {
    certificate: Certificate,
    key: KeyPair,
}

/// A key pair that signs tokens of `ServiceAccounts`.
#[derive(Debug, Clone)]
pub struct SigningKey {
    /// Private key, PKCS 8 as PEM.
    pub private_pem: String,
    /// Public key as PEM.
    pub public_pem: String,
}

impl SigningKey {
    /// A fresh pair.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn new() -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        Ok(Self {
            private_pem: key.serialize_pem(),
            public_pem: key.public_key_pem(),
        })
    }
}

impl Issued {
    /// The certificate as PEM.
    pub fn certificate_pem(&self) -> String {
        self.certificate.pem()
    }

    /// The key, PKCS 8 as PEM.
    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    pub(crate) fn der(&self) -> (rustls::pki_types::CertificateDer<'static>, Vec<u8>) {
        (self.certificate.der().clone(), self.key.serialize_der())
    }
}

impl Authority {
    /// A fresh authority.
    ///
    /// # Errors
    /// If no certificate can be made.
    pub fn new() -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params
            .distinguished_name
            .push(DnType::CommonName, "kubernetes");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            pem,
        })
    }

    /// Its own certificate as PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A server's certificate for these host names and addresses.
    ///
    /// # Errors
    /// If a name is none, or no certificate can be made.
    pub fn server(&self, names: &[String]) -> Result<Issued, rcgen::Error> {
        let params = CertificateParams::new(names.to_vec())?;
        let usage = ExtendedKeyUsagePurpose::ServerAuth;
        self.issue(params, "kube-apiserver", None, usage)
    }

    /// A client's certificate: what a Kubernetes API server reads user and group from.
    ///
    /// # Errors
    /// If no certificate can be made.
    pub fn client(&self, user: &str, group: Option<&str>) -> Result<Issued, rcgen::Error> {
        let params = CertificateParams::new(Vec::new())?;
        self.issue(params, user, group, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(
        &self,
        mut params: CertificateParams,
        name: &str,
        organisation: Option<&str>,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Issued, rcgen::Error> {
        let key = KeyPair::generate()?;
        let subject = &mut params.distinguished_name;
        subject.push(DnType::CommonName, DnValue::Utf8String(name.to_owned()));
        if let Some(organisation) = organisation {
            let organisation = DnValue::Utf8String(organisation.to_owned());
            subject.push(DnType::OrganizationName, organisation);
        }
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Issued { certificate, key })
    }
}

/// How a client says who it is.
pub enum Credentials<'a> {
    /// By a bearer token.
    Token(&'a str),
    /// By a certificate.
    Certificate(&'a Issued),
}

/// A kubeconfig as YAML, with everything inside.
pub fn kubeconfig(server_url: &str, authority_pem: &str, credentials: &Credentials<'_>) -> String {
    let authority = STANDARD.encode(authority_pem);
    let user = match credentials {
        Credentials::Token(token) => format!("token: {token}"),
        Credentials::Certificate(issued) => format!(
            "client-certificate-data: {}\n    client-key-data: {}",
            STANDARD.encode(issued.certificate_pem()),
            STANDARD.encode(issued.key_pem())
        ),
    };
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: onehop\n  cluster:\n    server: {server_url}\n    certificate-authority-data: {authority}\nusers:\n- name: user\n  user:\n    {user}\ncontexts:\n- name: onehop\n  context:\n    cluster: onehop\n    user: user\n    namespace: default\ncurrent-context: onehop\n"
    )
}
