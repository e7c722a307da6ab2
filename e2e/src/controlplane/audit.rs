//! What accounts wrote to the API server, whichever it is: the embedded one tells its requests, a real one keeps an
//! audit log. And what a real one refused them.

use anyhow::{Context, Result};
use e2e_apiserver::Record;
use serde::Deserialize;
use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufRead, BufReader, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};
use tokio::sync::mpsc::UnboundedReceiver;

/// What a real API server logs: answered requests of `ServiceAccounts`, without their bodies. A watch is logged when it
/// opens, too.
pub(super) const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: ['system:serviceaccounts']
";

/// A request that changed something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Whose it was.
    pub user: String,
    /// `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// Plural name of the kind, with the subresource if there was one.
    pub resource: String,
    /// Name of the object, empty for collections.
    pub name: String,
}

/// A request of an account for which it needs a right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked {
    /// Whose it was.
    pub user: String,
    /// The right, as `group/resource verb`; of a subresource, `group/resource/part verb`.
    pub right: String,
    /// HTTP status of the answer.
    pub code: u16,
}

/// Every kind of request in the log of a real API server, once.
pub(super) fn asked(path: &Path) -> Result<BTreeSet<Asked>> {
    let lines = read_log(path, &mut 0)?;
    Ok(lines.into_iter().filter_map(Line::asked).collect())
}

/// A request that an account had no right to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What was asked.
    pub request: Written,
    /// What the server said.
    pub message: String,
}

/// The writes from a moment on.
#[derive(Debug)]
pub struct Audit(Source);

#[derive(Debug)]
enum Source {
    Embedded(UnboundedReceiver<Record>),
    Log { path: PathBuf, read: u64 },
}

impl Audit {
    pub(super) fn embedded(requests: UnboundedReceiver<Record>) -> Self {
        Self(Source::Embedded(requests))
    }

    /// From the present end of a log.
    pub(super) fn of_log(path: &Path) -> Result<Self> {
        let length = path
            .metadata()
            .with_context(|| format!("read {}", path.display()));
        Ok(Self(Source::Log {
            path: path.to_owned(),
            read: length?.len(),
        }))
    }

    /// Writes since the last call.
    pub fn writes(&mut self) -> Result<Vec<Written>> {
        match &mut self.0 {
            Source::Embedded(requests) => {
                let all = std::iter::from_fn(|| requests.try_recv().ok());
                Ok(all.filter(Record::is_write).map(Written::from).collect())
            }
            Source::Log { path, read } => {
                let lines = read_log(path, read)?;
                Ok(lines.into_iter().filter_map(Line::write).collect())
            }
        }
    }
}

/// The requests that a real API server refused, each told once.
#[derive(Debug)]
pub(super) struct Refusals {
    path: PathBuf,
    read: Mutex<u64>,
}

impl Refusals {
    /// From the beginning of a log.
    pub(super) fn of_log(path: PathBuf) -> Self {
        Self {
            path,
            read: Mutex::default(),
        }
    }

    /// Those since the last call.
    pub(super) fn take(&self) -> Result<Vec<Refused>> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = read_log(&self.path, &mut read)?;
        Ok(lines.into_iter().filter_map(Line::refusal).collect())
    }
}

impl From<Record> for Written {
    fn from(record: Record) -> Self {
        Self {
            user: record.user,
            verb: record.verb.to_owned(),
            resource: with_part(record.resource, &record.part),
            name: record.name,
        }
    }
}

fn with_part(resource: String, part: &str) -> String {
    if part.is_empty() {
        resource
    } else {
        format!("{resource}/{part}")
    }
}

/// A line of the audit log, as far as it is read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    verb: String,
    user: User,
    object_ref: Option<ObjectRef>,
    response_status: Option<ResponseStatus>,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
#[serde(rename_all = "camelCase")]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
    message: String,
}

impl Line {
    /// The right that it needs, if it is about an object and was answered.
    fn asked(self) -> Option<Asked> {
        let (object, status) = (self.object_ref?, self.response_status?);
        let what = with_part(object.resource, &object.subresource);
        Some(Asked {
            user: self.user.username,
            right: format!("{}/{what} {}", object.api_group, self.verb),
            code: status.code,
        })
    }

    /// The write, if it is one and was answered well.
    fn write(self) -> Option<Written> {
        let done = (200..300).contains(&self.response_status.as_ref()?.code);
        let read = ["get", "list", "watch"].contains(&self.verb.as_str());
        (done && !read).then(|| self.request())
    }

    /// The refusal, if it is one for want of a right.
    fn refusal(mut self) -> Option<Refused> {
        let ResponseStatus { code, message } = self.response_status.take()?;
        // A namespace that goes takes nothing new; who is too late has the right all the same.
        let ends = message.contains("because it is being terminated");
        (code == 403 && !ends).then(|| Refused {
            request: self.request(),
            message,
        })
    }

    fn request(self) -> Written {
        let object = self.object_ref.unwrap_or_default();
        Written {
            user: self.user.username,
            verb: self.verb,
            resource: with_part(object.resource, &object.subresource),
            name: object.name,
        }
    }
}

/// The lines from a position on, which moves.
fn read_log(path: &Path, read: &mut u64) -> Result<Vec<Line>> {
    let of = || format!("read {}", path.display());
    let mut file = File::open(path).with_context(of)?;
    file.seek(SeekFrom::Start(*read)).with_context(of)?;
    let mut file = BufReader::new(file);
    let mut lines = Vec::new();
    let mut line = String::new();
    while file.read_line(&mut line).with_context(of)? > 0 {
        // The last line may still be being written; it is read the next time.
        if !line.ends_with('\n') {
            break;
        }
        *read += line.len() as u64;
        lines.push(serde_json::from_str(&line).context("a line of the audit log")?);
        line.clear();
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(verb: &str, code: u16, message: &str) -> Line {
        let text = format!(
            r#"{{"kind":"Event","verb":"{verb}","user":{{"username":"u","groups":[]}},"objectRef":{{"resource":"services","namespace":"default","name":"web","apiVersion":"v1","subresource":"status"}},"responseStatus":{{"metadata":{{}},"code":{code},"message":"{message}"}}}}"#
        );
        serde_json::from_str(&text).expect("a line")
    }

    #[test]
    fn a_line_of_the_audit_log_is_a_write_if_it_was_answered_well() {
        let written = Written {
            user: "u".into(),
            verb: "patch".into(),
            resource: "services/status".into(),
            name: "web".into(),
        };
        assert_eq!(line("patch", 200, "").write(), Some(written));
        assert_eq!(line("patch", 409, "").write(), None);
        assert_eq!(line("list", 200, "").write(), None);
    }

    #[test]
    fn it_is_a_refusal_if_a_right_was_wanting_reads_too() {
        let refusal = line("list", 403, "no right").refusal().expect("a refusal");
        assert_eq!(refusal.message, "no right");
        assert_eq!(refusal.request.verb, "list");
        assert_eq!(line("patch", 200, "").refusal(), None);
        let late = "unable to create new content in namespace shop because it is being terminated";
        assert_eq!(line("create", 403, late).refusal(), None);
    }
}
