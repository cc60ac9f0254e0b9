//! Basic authentication with the bcrypt hashes of Prometheus' web configuration.
//!
//! One check costs tens of milliseconds by design, so it runs on the blocking thread, one at a time
//! and in order of arrival, within a share of a processor; what was accepted once is accepted without
//! another check.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bcrypt::HashParts;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::str::FromStr as _;
use std::time::{Duration, Instant};

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
    allowance: Mutex<Allowance>,
}

/// The part of a processor that checks may take, and the seconds that they may save up.
const CPU_SHARE: f64 = 0.1;
const MAX_SAVED: f64 = 1.0;
/// Wrong passwords of a client in a second.
const MAX_WRONG: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);
/// Clients with a wrong password in a second; beyond it all wait.
const MAX_CLIENTS: usize = 256;

/// The time that checks may still take, and the clients that were wrong in the last second: when for the
/// first time, and how often.
#[derive(Debug)]
struct Allowance {
    /// In seconds; below 0 after a check that took more than there was.
    left: f64,
    at: Instant,
    wrong: HashMap<IpAddr, (Instant, u32)>,
}

impl Allowance {
    /// Whether a client's password may be checked now.
    fn allows(&mut self, client: IpAddr, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at);
        self.left = (self.left + passed.as_secs_f64() * CPU_SHARE).min(MAX_SAVED);
        self.at = self.at.max(now);
        self.wrong.retain(|_, (first, _)| *first + SECOND > now);
        let wrong = self.wrong.get(&client).map_or(0, |(_, count)| *count);
        wrong < MAX_WRONG && self.wrong.len() < MAX_CLIENTS && self.left > 0.0
    }

    fn spend(&mut self, (client, is_right): (IpAddr, bool), took: Duration, now: Instant) {
        self.left -= took.as_secs_f64();
        if !is_right {
            self.wrong.entry(client).or_insert((now, 0)).1 += 1;
        }
    }
}

impl Access {
    pub(super) fn new(users: Users) -> Self {
        let allowance = Allowance { left: MAX_SAVED, at: Instant::now(), wrong: HashMap::new() };
        let (accepted, keys) = (Mutex::default(), RandomState::new());
        Self { users, accepted, keys, allowance: Mutex::new(allowance) }
    }

    /// The answer where no check is needed: everybody may, or this header was accepted before.
    pub(super) fn is_known(&self, header: Option<&[u8]>) -> bool {
        let accepted = || self.accepted.lock();
        let is_accepted = |header| accepted().contains(&self.keys.hash_one(header));
        self.users.is_empty() || header.is_some_and(is_accepted)
    }

    /// Whether a client's password may be checked now: checks have a share of a processor, and a client
    /// that was wrong waits a moment.
    pub(super) fn allows(&self, client: IpAddr, now: Instant) -> bool {
        self.allowance.lock().allows(client, now)
    }

    /// Checks a name and a password of a client; takes as long as bcrypt does.
    pub(super) fn check(&self, client: IpAddr, credentials: &Credentials) -> bool {
        let Credentials { header, user, password } = credentials;
        let began = Instant::now();
        let is_right = self.users.verify(user, password);
        let (took, now) = (began.elapsed(), Instant::now());
        let mut allowance = self.allowance.lock();
        allowance.spend((client, is_right), took, now);
        drop(allowance);
        if is_right {
            let mut accepted = self.accepted.lock();
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
    use std::net::Ipv4Addr;

    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn wrong_passwords_without_end_take_a_share_of_a_processor() {
        let (began, check) = (Instant::now(), Duration::from_millis(70));
        let other = IpAddr::from([10, 0, 0, 7]);
        let mut allowance = Allowance { left: MAX_SAVED, at: began, wrong: HashMap::new() };
        let mut spent = Duration::ZERO;
        for step in 0..60_000 {
            let now = began + Duration::from_millis(step);
            if allowance.allows(CLIENT, now) {
                allowance.spend((CLIENT, false), check, now);
                spent += check;
            }
        }
        // What was saved, and a tenth of the minute.
        let most = Duration::from_secs_f64(MAX_SAVED) + Duration::from_secs(6) + check;
        assert!((most / 2..most).contains(&spent), "{spent:?} in a minute");
        // Another client is checked while this one waits, once there is time again.
        let now = began + Duration::from_mins(2);
        for _ in 0..MAX_WRONG {
            assert!(allowance.allows(CLIENT, now));
            allowance.spend((CLIENT, false), Duration::from_millis(1), now);
        }
        let allowed = |allowance: &mut Allowance, now| {
            [CLIENT, other].map(|client| allowance.allows(client, now))
        };
        assert_eq!(allowed(&mut allowance, now), [false, true]);
        assert_eq!(allowed(&mut allowance, now + SECOND), [true, true]);
    }

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
            Credentials::parse(header).is_some_and(|credentials| access.check(CLIENT, &credentials))
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
            assert!(access.check(CLIENT, &Credentials::parse(header.as_bytes()).unwrap()));
            assert_eq!(access.accepted.lock().len(), 1);
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
