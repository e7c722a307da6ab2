//! Image names → programs on this machine. The world fills the table; there is no registry.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// What runs for an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Absolute path of the program.
    pub program: PathBuf,
    /// Arguments before those of the container.
    pub args: Vec<String>,
    /// Its own files and the program that makes them a container's root. None: it runs among the machine's files, as whom
    /// and with what the kubelet itself has.
    pub own: Option<OwnFiles>,
}

/// What an image consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnFiles {
    /// Folder with its files.
    pub root: PathBuf,
    /// Absolute path of `pod-container`.
    pub starter: PathBuf,
    /// Where its programs are found by their names.
    pub path: String,
}

/// All images that pods of a world may name.
#[derive(Clone, Debug, Default)]
pub struct ImageTable {
    images: BTreeMap<String, Image>,
}

impl ImageTable {
    /// Adds or replaces an image.
    #[must_use]
    pub fn with(mut self, name: &str, program: impl Into<PathBuf>, args: &[&str]) -> Self {
        let args = args.iter().map(|&a| a.to_owned()).collect();
        self.images.insert(
            name.to_owned(),
            Image {
                program: program.into(),
                args,
                own: None,
            },
        );
        self
    }

    /// Adds or replaces an image with files of its own; its program is named as inside.
    #[must_use]
    pub fn with_files(mut self, name: &str, program: impl Into<PathBuf>, own: OwnFiles) -> Self {
        let image = Image {
            program: program.into(),
            args: Vec::new(),
            own: Some(own),
        };
        self.images.insert(name.to_owned(), image);
        self
    }

    /// The image of this name; a tag or digest that the table does not know is ignored.
    pub fn get(&self, name: &str) -> Option<&Image> {
        let untagged = || {
            let name = name.split('@').next().unwrap_or(name);
            match name.rsplit_once(':') {
                // A colon before the last slash is a registry's port.
                Some((base, tag)) if !tag.contains('/') => base,
                _ => name,
            }
        };
        self.images
            .get(name)
            .or_else(|| self.images.get(untagged()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_ignored_unless_the_table_knows_it() {
        let table = ImageTable::default()
            .with("web", "/bin/a", &[])
            .with("web:2", "/bin/b", &[]);
        let program = |name: &str| {
            table
                .get(name)
                .map(|i| i.program.to_string_lossy().into_owned())
        };
        assert_eq!(program("web:1").as_deref(), Some("/bin/a"));
        assert_eq!(program("web@sha256:00").as_deref(), Some("/bin/a"));
        assert_eq!(program("web:2").as_deref(), Some("/bin/b"));
        assert_eq!(program("registry:5000/web"), None);
    }
}
