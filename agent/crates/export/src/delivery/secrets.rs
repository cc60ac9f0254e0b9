//! Secrets from files: headers, a bearer token, the key of a webhook's signature. A file is read again
//! when it changes, so that a rotated secret needs no restart. No error names what is in one.

use gpuwho_collect::tls::{Written, written};
use gpuwho_model::config::checks;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use std::io;
use std::path::{Path, PathBuf};

/// A file with secrets that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Not readable.
    #[error("cannot read {path} ({source})")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line that is no header.
    #[error("{path}:{line}: not a header; write NAME: VALUE")]
    Header {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// No token, or one with characters that no header may have.
    #[error("{path}: not a token; write it alone in one line of printable ASCII")]
    Token {
        /// The file.
        path: PathBuf,
    },
    /// No key, or a weak one.
    #[error(
        "{path}: not a key; write whsec_ and 24 to 64 bytes in base64, or {least} characters or more"
    )]
    Key {
        /// The file.
        path: PathBuf,
        /// Fewest characters of a key that is plain text.
        least: usize,
    },
}

/// Files with headers of each request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderFiles {
    /// A line `NAME: VALUE` for each header.
    pub headers: Option<PathBuf>,
    /// The token of `authorization: Bearer`.
    pub token: Option<PathBuf>,
}

impl HeaderFiles {
    fn stamp(&self) -> [Option<Written>; 2] {
        [&self.headers, &self.token].map(|path| path.as_deref().and_then(written))
    }

    /// Reads them; every value is marked sensitive.
    pub(crate) fn read(&self) -> Result<HeaderMap, SecretError> {
        let mut headers = HeaderMap::new();
        if let Some(path) = &self.headers {
            for (line, text) in (1..).zip(text(path)?.lines()) {
                let text = text.trim();
                if text.is_empty() || text.starts_with('#') {
                    continue;
                }
                let (name, value) =
                    header(text).ok_or_else(|| SecretError::Header { path: path.clone(), line })?;
                headers.insert(name, value);
            }
        }
        if let Some(path) = &self.token {
            let token = text(path)?;
            let token = Some(token.trim()).filter(|token| !token.is_empty());
            let value = token.and_then(|token| sensitive(&format!("Bearer {token}")));
            let value = value.ok_or_else(|| SecretError::Token { path: path.clone() })?;
            headers.insert(AUTHORIZATION, value);
        }
        Ok(headers)
    }
}

/// What a file holds, read again when it changes.
#[derive(Debug)]
pub(crate) struct Cached<S, T> {
    stamp: Option<S>,
    value: T,
}

impl<S, T: Default> Default for Cached<S, T> {
    fn default() -> Self {
        Self { stamp: None, value: T::default() }
    }
}

impl<S: PartialEq, T> Cached<S, T> {
    /// The value of the files that have this stamp.
    pub(crate) fn get<E>(
        &mut self,
        stamp: S,
        read: impl FnOnce() -> Result<T, E>,
    ) -> Result<&T, E> {
        if self.stamp.as_ref() != Some(&stamp) {
            self.value = read()?;
            self.stamp = Some(stamp);
        }
        Ok(&self.value)
    }
}

/// The headers of the files, as a connection keeps them.
#[derive(Debug, Default)]
pub(crate) struct CachedHeaders(Cached<[Option<Written>; 2], HeaderMap>);

impl CachedHeaders {
    /// The headers of now.
    pub(crate) fn of(&mut self, files: &HeaderFiles) -> Result<&HeaderMap, SecretError> {
        self.0.get(files.stamp(), || files.read())
    }
}

/// The text of a regular file of bounded length.
pub(crate) fn text(path: &Path) -> Result<String, SecretError> {
    checks::read(path).map_err(|source| SecretError::Read { path: path.to_owned(), source })
}

fn header(line: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = line.split_once(':')?;
    Some((HeaderName::from_bytes(name.trim().as_bytes()).ok()?, sensitive(value.trim())?))
}

/// A value that `Debug` does not print.
fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn files(headers: &str, token: &str) -> (tempfile::TempDir, HeaderFiles) {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] = ["headers", "token"].map(|name| folder.path().join(name));
        fs::write(&one, headers).unwrap();
        fs::write(&two, token).unwrap();
        (folder, HeaderFiles { headers: Some(one), token: Some(two) })
    }

    #[test]
    fn headers_and_token_are_read_and_none_is_printed() {
        let (_folder, files) = files("# ours\n\nX-Tenant: a: b\n", "s3cret\n");
        let headers = files.read().unwrap();
        assert_eq!((headers.len(), &headers["x-tenant"]), (2, &"a: b".parse().unwrap()));
        assert_eq!(headers["authorization"], "Bearer s3cret");
        let printed = format!("{headers:?}");
        assert!(!printed.contains("s3cret") && !printed.contains("a: b"), "{printed}");
    }

    #[test]
    fn a_changed_file_is_read_again_and_an_unchanged_one_is_not() {
        let (folder, files) = files("", "one");
        let mut cached = CachedHeaders::default();
        assert_eq!(cached.of(&files).unwrap()["authorization"], "Bearer one");
        let new = folder.path().join("new");
        fs::write(&new, "two").unwrap();
        fs::rename(&new, files.token.as_ref().unwrap()).unwrap();
        assert_eq!(cached.of(&files).unwrap()["authorization"], "Bearer two");
        let mut reads = 0;
        let mut kept = Cached::<u8, u8>::default();
        for stamp in [1, 1, 2] {
            let read = || {
                reads += 1;
                Ok::<_, SecretError>(reads)
            };
            kept.get(stamp, read).unwrap();
        }
        assert_eq!(reads, 2);
    }

    #[test]
    fn what_is_wrong_is_named_without_its_text() {
        for (headers, token, expected) in [
            ("good: 1\nthe s3cret\n", "x", "headers:2: not a header"),
            ("", "s3cret\nof two lines", "token: not a token"),
            ("", " \n", "token: not a token"),
        ] {
            let (_folder, files) = files(headers, token);
            let error = files.read().unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("s3cret"), "{error}");
        }
    }
}
