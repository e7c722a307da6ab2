//! HTTP clients towards clouds: whom they trust.

use reqwest::{Certificate, ClientBuilder, Url};

use super::{Class, CloudError};

/// A client of an endpoint, for its caller to finish: it trusts the authorities of the system and those in `extra` (PEM).
/// Towards plain HTTP nobody has to be trusted, so that an image without any certificate will do.
pub(crate) fn builder(endpoint: &Url, extra: Option<&[u8]>) -> Result<ClientBuilder, CloudError> {
    let builder = reqwest::Client::builder();
    if endpoint.scheme() == "http" {
        return Ok(builder.tls_certs_only([]));
    }
    let Some(pem) = extra else { return Ok(builder) };
    let certificates = Certificate::from_pem_bundle(pem).map_err(|error| wrong(&error))?;
    Ok(builder.tls_certs_merge(certificates))
}

/// Finishes it.
pub(crate) fn build(builder: ClientBuilder) -> Result<reqwest::Client, CloudError> {
    builder.build().map_err(|error| wrong(&error))
}

fn wrong(error: &reqwest::Error) -> CloudError {
    let mut said = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        said = format!("{said}: {inner}");
        cause = inner.source();
    }
    let hint = "certificates of authorities are read from the system, or from the file that SSL_CERT_FILE names";
    CloudError::new(
        Class::WrongInput,
        "make an HTTPS client",
        format!("{said} ({hint})"),
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Set for the process in which nobody is trusted.
    const ALONE: &str = "ONEHOP_TEST_WITHOUT_CERTIFICATES";

    fn made(endpoint: &str, extra: Option<&[u8]>) -> Result<reqwest::Client, CloudError> {
        build(builder(&endpoint.parse().unwrap(), extra)?)
    }

    /// What an image without certificates has: run again by the test below, with an environment of its own.
    #[test]
    fn without_any_certificate_plain_http_works_and_https_says_what_is_missing() {
        if std::env::var_os(ALONE).is_none() {
            let mut command = Command::new(std::env::current_exe().unwrap());
            let name = "cloud::https::tests::without_any_certificate_plain_http_works_and_https_says_what_is_missing";
            command.args(["--exact", name]);
            command.env(ALONE, "1").env("SSL_CERT_FILE", "/dev/null");
            command.env("SSL_CERT_DIR", "/nonexistent");
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && said.contains("1 passed"),
                "{said}"
            );
            return;
        }
        made("http://192.0.2.1:9", None).unwrap();
        let error = made("https://192.0.2.1:9", None).unwrap_err().to_string();
        assert!(error.contains("SSL_CERT_FILE"), "{error}");
    }

    #[test]
    fn an_authority_that_is_no_certificate_is_told() {
        assert!(
            made(
                "https://192.0.2.1:9",
                Some(b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
            )
            .is_err()
        );
    }
}
