//! Logs: one JSON object a line on standard error, for machines; plain lines on request.

use std::fmt;
use std::io::{self, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::MakeWriter;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line.
    #[default]
    Json,
    /// Plain text.
    Text,
}

/// Why logs could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter makes no sense.
    #[error("log filter {filter:?}: {source}; say for example info,onehop_controller=debug")]
    Filter {
        /// The filter.
        filter: String,
        /// What is wrong with it.
        source: ParseError,
    },
    /// Somebody else set them up before.
    #[error("logs are set up already: {0}")]
    AlreadySet(Box<dyn std::error::Error + Send + Sync>),
}

/// Sets logs up for this process, whose every JSON line says `who` it is by a field and its value, and has it end when any
/// thread or task panics: a program of which a part is dead looks alive to everybody, while one that ended is started
/// again. For mains only.
pub fn init(filter: &str, format: Format, who: (&str, &str)) -> Result<(), LogError> {
    let parsed = EnvFilter::try_new(filter).map_err(|source| LogError::Filter {
        filter: filter.to_owned(),
        source,
    })?;
    let lines = tracing_subscriber::fmt().with_env_filter(parsed);
    match format {
        Format::Json => lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_writer(Named::new(who, io::stderr))
            .try_init(),
        Format::Text => lines.with_ansi(false).with_writer(io::stderr).try_init(),
    }
    .map_err(LogError::AlreadySet)?;
    std::panic::set_hook(Box::new(|panic| {
        tracing::error!(%panic, "a defect of the program ends it");
        std::process::abort();
    }));
    Ok(())
}

/// Puts one field before those of each JSON line: a span would have to be carried into every task to be there (C-113).
#[derive(Debug)]
struct Named<M> {
    field: Vec<u8>,
    under: M,
}

impl<M> Named<M> {
    fn new((name, value): (&str, &str), under: M) -> Self {
        let [name, value] = [name, value].map(serde_json::Value::from);
        Self {
            field: format!("{{{name}:{value},").into_bytes(),
            under,
        }
    }
}

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for Named<M> {
    type Writer = Line<'a, M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Line {
            field: &self.field,
            under: self.under.make_writer(),
        }
    }
}

/// One line, which comes in one piece.
#[derive(Debug)]
struct Line<'a, W> {
    field: &'a [u8],
    under: W,
}

impl<W: Write> Write for Line<'_, W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match line.strip_prefix(b"{") {
            Some(rest) => self.under.write_all(&[self.field, rest].concat())?,
            None => self.under.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.under.flush()
    }
}

/// An error and what caused it, joined by colons: `{}` of most errors shows only the outermost.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a (dyn std::error::Error + 'a));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.0.to_string();
        f.write_str(&shown)?;
        let mut next = self.0.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            // Many errors print their cause themselves.
            if !shown.contains(&text) {
                write!(f, ": {text}")?;
            }
            shown = text;
            next = cause.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(line)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn c113_each_line_is_one_object_that_says_who_wrote_it() {
        let kept = Kept::default();
        let under = kept.clone();
        let lines = tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_writer(Named::new(("install", "a \"b\""), move || under.clone()))
            .finish();
        tracing::subscriber::with_default(lines, || {
            tracing::info!(service = "default/web", "one\nthing");
            tracing::warn!("another");
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(
            lines.iter().all(|line| line["install"] == "a \"b\""),
            "{text}"
        );
        assert_eq!(lines[0]["service"], json!("default/web"));
        assert_eq!(lines[0]["message"], json!("one\nthing"));
    }
}
