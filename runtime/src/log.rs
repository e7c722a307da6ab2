//! Logs: one JSON object a line on standard error, for machines; plain lines on request.

use std::fmt;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

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

/// Sets logs up for this process, and has it end when any thread or task panics: a program of which a
/// part is dead looks alive to everybody, while one that ended is started again. For mains only.
pub fn init(filter: &str, format: Format) -> Result<(), LogError> {
    let parsed = EnvFilter::try_new(filter).map_err(|source| LogError::Filter {
        filter: filter.to_owned(),
        source,
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(std::io::stderr);
    match format {
        Format::Json => lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .try_init(),
        Format::Text => lines.with_ansi(false).try_init(),
    }
    .map_err(LogError::AlreadySet)?;
    std::panic::set_hook(Box::new(|panic| {
        tracing::error!(%panic, "a defect of the program ends it");
        std::process::abort();
    }));
    Ok(())
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
