//! Errors of the configuration: each names the place, the problem and the remedy.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {path}: {source}; {}", readable(.source))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML, or a value has the wrong type.
    #[error("{place}: {problem}")]
    Syntax {
        /// File and line.
        place: String,
        /// What is wrong.
        problem: String,
    },
    /// A key that does not exist.
    #[error("{place}: unknown key `{key}`{}", nearest_words(.nearest.as_deref()))]
    UnknownKey {
        /// File and line, or the environment variable.
        place: String,
        /// The key, as typed.
        key: String,
        /// The valid key that looks most like it.
        nearest: Option<String>,
    },
    /// An environment variable's value has the wrong type.
    #[error("environment variable {variable}: {problem}")]
    Environment {
        /// The variable.
        variable: String,
        /// What is wrong.
        problem: String,
    },
    /// A value that cannot be used.
    #[error("`{key}`: {problem}; {remedy}")]
    Value {
        /// The key.
        key: String,
        /// What is wrong with its value.
        problem: String,
        /// What to write instead.
        remedy: String,
    },
    /// What a component says of its own settings.
    #[error(transparent)]
    Component(Box<dyn Error + Send + Sync>),
}

impl ConfigError {
    /// What is wrong at a key or variable, and what to write instead.
    pub fn at(origin: impl fmt::Display, problem: impl fmt::Display) -> Self {
        Self::Component(format!("{origin}: {problem}").into())
    }

    /// A name that is in no table.
    pub fn no_such(what: &str, name: &str) -> Self {
        let (key, problem) = (name.to_owned(), format!("there is no such {what}"));
        Self::Value { key, problem, remedy: "`gpuwho config sample` lists all".into() }
    }
}

fn readable(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => "`gpuwho config sample` prints one to begin with",
        std::io::ErrorKind::PermissionDenied => "let the user that runs gpuwho read it",
        _ => "name a file of text with --config",
    }
}

fn nearest_words(nearest: Option<&str>) -> String {
    nearest.map_or_else(
        || "; `gpuwho config sample` lists the keys".to_owned(),
        |key| format!("; did you mean `{key}`?"),
    )
}
