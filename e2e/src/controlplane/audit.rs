//! What accounts wrote to the API server, whichever it is: the embedded one tells its requests, a real one keeps an
//! audit log.

use anyhow::{Context, Result};
use e2e_apiserver::Record;
use serde::Deserialize;
use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufRead, BufReader, Seek, SeekFrom},
    path::{Path, PathBuf},
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
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut found = BTreeSet::new();
    for line in whole.lines() {
        let line: Line = serde_json::from_str(line).context("a line of the audit log")?;
        let (Some(object), Some(status)) = (line.object_ref, line.response_status) else {
            continue;
        };
        let what = with_part(object.resource, &object.subresource);
        found.insert(Asked {
            user: line.user.username,
            right: format!("{}/{what} {}", object.api_group, line.verb),
            code: status.code,
        });
    }
    Ok(found)
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
                read_log(path, read).with_context(|| format!("read {}", path.display()))
            }
        }
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

#[derive(Deserialize)]
struct ResponseStatus {
    code: u16,
}

fn read_log(path: &Path, read: &mut u64) -> Result<Vec<Written>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(*read))?;
    let mut file = BufReader::new(file);
    let mut writes = Vec::new();
    let mut line = String::new();
    while file.read_line(&mut line)? > 0 {
        // The last line may still be being written; it is read the next time.
        if !line.ends_with('\n') {
            break;
        }
        *read += line.len() as u64;
        writes.extend(write_of(&line)?);
        line.clear();
    }
    Ok(writes)
}

fn write_of(line: &str) -> Result<Option<Written>> {
    let line: Line = serde_json::from_str(line).context("a line of the audit log")?;
    let done = line
        .response_status
        .is_some_and(|s| (200..300).contains(&s.code));
    let changes = !matches!(line.verb.as_str(), "get" | "list" | "watch");
    let object = line.object_ref.unwrap_or_default();
    Ok((done && changes).then(|| Written {
        user: line.user.username,
        verb: line.verb,
        resource: with_part(object.resource, &object.subresource),
        name: object.name,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_audit_log_is_a_write_if_it_was_answered_well() {
        let line = |code: u16| {
            format!(
                r#"{{"kind":"Event","verb":"patch","user":{{"username":"u","groups":[]}},"objectRef":{{"resource":"services","namespace":"default","name":"web","apiVersion":"v1","subresource":"status"}},"responseStatus":{{"metadata":{{}},"code":{code}}}}}"#
            )
        };
        let written = Written {
            user: "u".into(),
            verb: "patch".into(),
            resource: "services/status".into(),
            name: "web".into(),
        };
        assert_eq!(write_of(&line(200)).expect("a line"), Some(written));
        assert_eq!(write_of(&line(409)).expect("a line"), None);
    }
}
