//! Tests that cannot run here say what they would need, and are counted as skipped.

use crate::stage::StageError;

/// Prints `skipped: needs <what>` and returns from the test.
#[macro_export]
macro_rules! skip {
    ($($what:tt)*) => {{
        println!("skipped: needs {}", format_args!($($what)*));
        return;
    }};
}

/// Why something could not be had: the machine lacks what it needs, or it is broken.
pub trait Lack {
    /// What the machine lacks; `None` if it has everything, and a test must fail.
    fn lack(&self) -> Option<String>;
}

impl Lack for StageError {
    fn lack(&self) -> Option<String> {
        matches!(self, Self::Unavailable(_)).then(|| self.to_string())
    }
}

/// Words for what the machine lacks.
impl Lack for &str {
    fn lack(&self) -> Option<String> {
        Some((*self).to_owned())
    }
}

/// The value, or `skipped: needs <what the machine lacks>`; any other error fails the test.
#[macro_export]
macro_rules! or_skip {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => match $crate::skip::Lack::lack(&error) {
                Some(lack) => $crate::skip!("{lack}"),
                None => panic!("{error}"),
            },
        }
    };
}

#[cfg(test)]
mod tests {
    use super::{Lack as _, StageError};
    use std::io;

    #[test]
    fn only_what_a_machine_lacks_is_skipped() {
        let privilege = StageError::Unavailable("root");
        let broken = StageError::File { path: "/run".into(), source: io::Error::other("full") };
        assert_eq!((privilege.lack().as_deref(), broken.lack()), (Some("root"), None));
    }
}
