//! Basic authentication with the bcrypt hashes of Prometheus' web configuration.
//!
//! One check costs tens of milliseconds by design, so it runs on the blocking thread, one at a time
//! and in order of arrival; what was accepted once is accepted without another check.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bcrypt::HashParts;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::str::FromStr as _;
use std::sync::{Mutex, PoisonError};

/// Longest `Authorization` that is looked at: a name and the 72 bytes that bcrypt takes.
const MAX_HEADER: usize = 512;

/// Longest password; bcrypt ignores what is behind it.
const MAX_PASSWORD: usize = 72;

/// The range of costs: a cost of 15 takes seconds a check, and bcrypt itself has none below 4.
const COSTS: std::ops::RangeInclusive<u32> = 4..=14;

/// Who may scrape.
#[derive(Clone, Default)]
pub(super) struct Users(BTreeMap<String, String>);

impl Users {
    /// Checks the hashes; the error names the user whose hash is not usable.
    pub(super) fn new(hashes: BTreeMap<String, String>) -> Result<Self, String> {
        let is_usable = |hash: &str| {
            HashParts::from_str(hash).is_ok_and(|hash| COSTS.contains(&hash.get_cost()))
        };
        match hashes.iter().find(|(_, hash)| !is_usable(hash)) {
            Some((user, _)) => Err(user.clone()),
            None => Ok(Self(hashes)),
        }
    }

    /// Whether everybody may.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks a name and a password. A name that does not exist takes as long as one that does.
    fn verify(&self, user: &str, password: &str) -> bool {
        let known = self.0.get(user);
        let Some(hash) = known.or_else(|| self.0.values().next()) else { return false };
        let is_right = bcrypt::verify(password, hash).unwrap_or(false);
        is_right && known.is_some()
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The check of requests.
#[derive(Debug)]
pub(super) struct Access {
    users: Users,
    /// Keyed hashes of the headers that were accepted: at most one for each user.
    accepted: Mutex<HashSet<u64>>,
    keys: RandomState,
}

impl Access {
    pub(super) fn new(users: Users) -> Self {
        Self { users, accepted: Mutex::default(), keys: RandomState::new() }
    }

    /// The answer where no check is needed: everybody may, or this header was accepted before.
    pub(super) fn is_known(&self, header: Option<&[u8]>) -> bool {
        let accepted = || self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_accepted = |header| accepted().contains(&self.keys.hash_one(header));
        self.users.is_empty() || header.is_some_and(is_accepted)
    }

    /// Checks a name and a password; takes as long as bcrypt does.
    pub(super) fn check(&self, credentials: &Credentials) -> bool {
        let Credentials { header, user, password } = credentials;
        let is_right = self.users.verify(user, password);
        if is_right {
            let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
            // base64 and the word `Basic` have more than one spelling.
            if accepted.len() >= self.users.0.len() {
                accepted.clear();
            }
            accepted.insert(self.keys.hash_one(&**header));
        }
        is_right
    }
}

/// A name and a password, and the header that they come from.
pub(super) struct Credentials {
    header: Box<[u8]>,
    user: String,
    password: String,
}

impl Credentials {
    /// Reads a header; `None` without a name and a password of a length that can be right.
    pub(super) fn parse(header: &[u8]) -> Option<Self> {
        let (user, password) = name_and_password(header)?;
        Some(Self { header: header.into(), user, password })
    }
}

fn name_and_password(header: &[u8]) -> Option<(String, String)> {
    let text = std::str::from_utf8(header).ok().filter(|text| text.len() <= MAX_HEADER)?;
    let (scheme, encoded) = text.split_once(' ')?;
    let decoded = STANDARD.decode(encoded.trim()).ok()?;
    let decoded = String::from_utf8(decoded).ok()?;
    let (user, password) = decoded.split_once(':')?;
    let is_one = scheme.eq_ignore_ascii_case("basic") && password.len() <= MAX_PASSWORD;
    is_one.then(|| (user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Users {
        let hash = bcrypt::hash("secret", 4).unwrap();
        Users::new([("alice".to_owned(), hash)].into()).unwrap()
    }

    fn header(text: &str) -> Vec<u8> {
        format!("Basic {}", STANDARD.encode(text)).into_bytes()
    }

    #[test]
    fn only_the_right_password_of_a_known_user_is_accepted() {
        let access = Access::new(users());
        let check = |header: &[u8]| {
            Credentials::parse(header).is_some_and(|credentials| access.check(&credentials))
        };
        assert!(!access.is_known(None));
        let long = format!("alice:{}", "a".repeat(73));
        for wrong in ["alice:Secret", "bob:secret", "alice", ":", &long] {
            assert!(!check(&header(wrong)), "{wrong}");
        }
        assert!(!check(b"Bearer c2VjcmV0"));
        assert!(!check(&[0xff, b' ', 0xff]));
        let right = header("alice:secret");
        assert!(!access.is_known(Some(&right)), "not before it was checked");
        assert!(check(&right));
        assert!(access.is_known(Some(&right)), "and without a check from then on");
        assert!(!access.is_known(Some(&header("alice:Secret"))));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let access = Access::new(users());
        for spaces in 1..9 {
            let header = format!("Basic{}{}", " ".repeat(spaces), STANDARD.encode("alice:secret"));
            assert!(access.check(&Credentials::parse(header.as_bytes()).unwrap()));
            assert_eq!(access.accepted.lock().unwrap().len(), 1);
        }
    }

    #[test]
    fn without_users_everybody_may() {
        assert!(Access::new(Users::default()).is_known(None));
    }

    #[test]
    fn a_hash_that_is_none_or_too_costly_is_refused() {
        let of = |hash: &str| Users::new([("bob".to_owned(), hash.to_owned())].into());
        assert_eq!(of("secret").map(drop), Err("bob".into()));
        let good = bcrypt::hash("secret", 4).unwrap();
        assert!(of(&good).is_ok());
        assert_eq!(of(&good.replacen("$04$", "$31$", 1)).map(drop), Err("bob".into()));
        assert!(!format!("{:?}", of(&good)).contains(&good), "no hash in a log");
    }
}
