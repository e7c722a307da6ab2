//! What people ask the agent on its own node, on the metrics port (S-312): what is programmed for each Service (S-207),
//! and whether the kernel holds it (S-264). The app answers. From the node itself only: an answer costs as much as the
//! tables are large.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use http::{Method, Request, StatusCode};
use onehop_core::id::ServiceKey;
use onehop_runtime::clock::Clock;
use tokio::sync::{mpsc, oneshot};

use crate::args::{KUBE_PROXY_METRICS_PORT, METRICS_PORT};
use crate::http::{Answer, Caller, SERVER, response};

/// Questions that wait; who asks more is told to come again.
const WAITING: usize = 8;
/// How long an answer may take: reading back the largest tables, and a commit that is under way.
const PATIENCE: Duration = Duration::from_secs(30);
const SERVICES: &str = "/services";
const VERIFY: &str = "/verify";

/// A question to the app.
#[derive(Debug)]
pub enum Question {
    /// What is programmed, of one Service or of all.
    Services {
        /// The one.
        only: Option<ServiceKey>,
        /// Gets the text.
        answer: oneshot::Sender<String>,
    },
    /// Read the kernel's tables back and mend what differs.
    Verify {
        /// Gets the number of elements that differed, once they are mended.
        answer: oneshot::Sender<usize>,
    },
}

/// Where questions go.
#[derive(Debug, Clone)]
pub struct Questions {
    app: mpsc::Sender<Question>,
    clock: Clock,
}

impl Questions {
    /// With the end that the app has.
    pub fn new(clock: Clock) -> (Self, mpsc::Receiver<Question>) {
        let (app, questions) = mpsc::channel(WAITING);
        (Self { app, clock }, questions)
    }

    /// The answer to a request, if its path is one of these.
    pub fn answer<B>(&self, request: &Request<B>) -> Option<Answer> {
        let path = request.uri().path();
        let known = path == SERVICES || path.starts_with("/services/") || path == VERIFY;
        if !known {
            return None;
        }
        if !Caller::is_this_node(request) {
            let why = "only on the node itself, by loopback\n";
            return Some(response(StatusCode::FORBIDDEN, "text/plain", why).into());
        }
        if path == VERIFY {
            if request.method() != Method::POST {
                let why = "POST, since it may change the kernel's tables\n";
                return Some(response(StatusCode::METHOD_NOT_ALLOWED, "text/plain", why).into());
            }
            let text = |differed: usize| match differed {
                0 => "the kernel holds what it should\n".to_owned(),
                _ => format!("{differed} elements of the kernel differed and are mended\n"),
            };
            return Some(self.ask(|answer| Question::Verify { answer }, text));
        }
        let mut parts = path[SERVICES.len()..].split('/').skip(1);
        let only = match (parts.next(), parts.next(), parts.next()) {
            (None | Some(""), None, None) => None,
            (Some(namespace), Some(name), None) => Some(ServiceKey::new(namespace, name)),
            _ => {
                let why = "/services or /services/NAMESPACE/NAME\n";
                return Some(response(StatusCode::NOT_FOUND, "text/plain", why).into());
            }
        };
        let question = |answer| Question::Services { only, answer };
        Some(self.ask(question, |text| text))
    }

    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Question,
        text: impl FnOnce(T) -> String + Send + 'static,
    ) -> Answer {
        let (sender, answer) = oneshot::channel();
        if self.app.try_send(question(sender)).is_err() {
            let why = "others are being answered: ask again\n";
            return response(StatusCode::SERVICE_UNAVAILABLE, "text/plain", why).into();
        }
        let clock = self.clock;
        Answer::Later(Box::pin(async move {
            tokio::select! {
                Ok(answer) = answer => response(StatusCode::OK, "text/plain", text(answer)),
                () = clock.sleep(PATIENCE) => {
                    let why = "no answer yet: nothing is programmed, or the kernel refuses it; the log says why\n";
                    response(StatusCode::SERVICE_UNAVAILABLE, "text/plain", why)
                }
            }
        }))
    }
}

/// Asks the agent of this network namespace what is programmed, for `dump`.
pub fn dump(from: Option<SocketAddr>, service: Option<&str>) -> Result<String, String> {
    let path = match service {
        Some(service) if service.split('/').count() == 2 => format!("{SERVICES}/{service}"),
        Some(service) => return Err(format!("{service:?} is not NAMESPACE/NAME")),
        None => SERVICES.to_owned(),
    };
    request(from, "GET", &path)
}

/// Has the agent of this network namespace compare the kernel with what it should hold, for `verify`.
pub fn verify(from: Option<SocketAddr>) -> Result<String, String> {
    request(from, "POST", VERIFY)
}

fn request(from: Option<SocketAddr>, method: &str, path: &str) -> Result<String, String> {
    let loopback = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let places = from.map_or_else(
        || vec![loopback(METRICS_PORT), loopback(KUBE_PROXY_METRICS_PORT)],
        |from| vec![from],
    );
    let mut wrong = Vec::new();
    for place in places {
        match request_at(place, method, path) {
            Ok(answer) => return answer,
            Err(error) => wrong.push(format!("{place}: {error}")),
        }
    }
    Err(format!("no agent answers: {}", wrong.join("; ")))
}

/// The answer of an agent: what it says, or why it does not. An error: there is no agent.
fn request_at(
    place: SocketAddr,
    method: &str,
    path: &str,
) -> std::io::Result<Result<String, String>> {
    let mut stream = TcpStream::connect_timeout(&place, Duration::from_secs(2))?;
    // It says itself that it took too long.
    stream.set_read_timeout(Some(PATIENCE + Duration::from_secs(5)))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    if !head.to_ascii_lowercase().contains(SERVER) {
        return Err(std::io::Error::other("it is no agent that answers there"));
    }
    let good = head.split(' ').nth(1) == Some("200");
    Ok(if good {
        Ok(body.to_owned())
    } else {
        Err(body.trim_end().to_owned())
    })
}
