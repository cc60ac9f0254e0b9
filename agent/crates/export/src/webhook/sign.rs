//! Identifiers and signatures of the Standard Webhooks specification.

use crate::delivery::secrets::{Cached, SecretError, text};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gpuwho_collect::tls::{Written, written};
use ring::digest::{SHA256, digest};
use ring::hmac;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// How a key in base64 begins.
const PREFIX: &str = "whsec_";
/// Bytes of a key, as the specification has them.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Fewest characters of a key that is plain text.
const LEAST_CHARACTERS: usize = 16;
/// Most keys: the old and the new one of a rotation.
const MAX_KEYS: usize = 4;

/// The keys of a file, one a line; each signs, so that a key can be replaced without a gap.
#[derive(Debug)]
pub(super) struct Keys {
    path: PathBuf,
    cached: Cached<Option<Written>, Vec<hmac::Key>>,
}

impl Keys {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, cached: Cached::default() }
    }

    /// The value of `webhook-signature`.
    pub(super) fn sign(
        &mut self,
        id: &str,
        seconds: u64,
        body: &[u8],
    ) -> Result<String, SecretError> {
        let path = &self.path;
        let keys = self.cached.get(written(path), || read(path))?;
        let signed = keys.iter().map(|key| {
            let mut context = hmac::Context::with_key(key);
            context.update(format!("{id}.{seconds}.").as_bytes());
            context.update(body);
            format!("v1,{}", STANDARD.encode(context.sign()))
        });
        Ok(signed.collect::<Vec<_>>().join(" "))
    }
}

/// Reads the keys of a file.
pub(super) fn read(path: &Path) -> Result<Vec<hmac::Key>, SecretError> {
    let wrong = || SecretError::Key { path: path.to_owned(), least: LEAST_CHARACTERS };
    let text = text(path)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let keys: Option<Vec<_>> = lines.map(key).collect();
    keys.filter(|keys| (1..=MAX_KEYS).contains(&keys.len())).ok_or_else(wrong)
}

fn key(line: &str) -> Option<hmac::Key> {
    let bytes = match line.strip_prefix(PREFIX) {
        Some(coded) => {
            STANDARD.decode(coded).ok().filter(|bytes| KEY_BYTES.contains(&bytes.len()))?
        }
        None => Some(line.as_bytes().to_vec()).filter(|bytes| bytes.len() >= LEAST_CHARACTERS)?,
    };
    Some(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
}

/// The identifier of a batch: of its content, so that it is the same after a restart. No two batches
/// have the same content, because each has its times.
pub(super) fn id(body: &[u8]) -> String {
    let mut id = String::from("msg_");
    for byte in digest(&SHA256, body).as_ref().iter().take(16) {
        // Writing to a string does not fail.
        let _ = write!(id, "{byte:02x}");
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn keys(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn a_signature_is_that_of_the_specification_s_own_example() {
        let (_folder, path) = keys("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n");
        let body = br#"{"test": 2432232314}"#;
        let signed = Keys::new(path).sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signed.unwrap(), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn each_key_of_the_file_signs_and_a_new_file_is_read() {
        let (folder, path) = keys("first key of ours\nsecond key of ours\n");
        let mut keys = Keys::new(path.clone());
        let both = keys.sign("a", 1, b"x").unwrap();
        let (old, new) = both.split_once(' ').unwrap();
        assert!(old != new && old.starts_with("v1,") && new.starts_with("v1,"));
        let next = folder.path().join("next");
        fs::write(&next, "second key of ours").unwrap();
        fs::rename(&next, &path).unwrap();
        assert_eq!(keys.sign("a", 1, b"x").unwrap(), new);
    }

    #[test]
    fn a_weak_or_broken_key_is_refused_and_not_printed() {
        for text in
            ["", "\n", "short", "whsec_", "whsec_c2hvcnQ=", "whsec_no base64 at all, but long"]
        {
            let (_folder, path) = keys(text);
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("not a key"), "{error}");
            assert!(text.trim().is_empty() || !error.contains(text.trim()) || text == "whsec_");
        }
        let (_folder, path) = keys(&"a key of sixteen\n".repeat(5));
        assert!(read(&path).is_err(), "too many");
    }

    #[test]
    fn the_identifier_is_the_content_s() {
        assert_eq!(id(b"a"), id(b"a"));
        assert_ne!(id(b"a"), id(b"b"));
        assert_eq!(id(b"").len(), 36);
    }
}
