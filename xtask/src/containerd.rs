//! A containerd that has the CRI's event stream, for the tests of it: version 1.7, beside the
//! system's where that is older, unpacked into the cache and not installed.

use crate::{shell, unpacked};
use anyhow::Result;
use std::path::PathBuf;

/// The variable that tells the tests in which folder its programs are.
pub const VARIABLE: &str = "GPUWHO_CONTAINERD";

/// Oldest version with the event stream.
const OLDEST: (u32, u32) = (1, 7);

/// The folder of its programs; none where the system's containerd will do.
pub fn for_tests() -> Result<Option<PathBuf>> {
    let system = shell::capture(&mut shell::program("containerd", ["--version"]));
    if system.ok().and_then(|text| parse_version(&text)).is_some_and(|version| version >= OLDEST) {
        return Ok(None);
    }
    let program = unpacked::program("containerd", "trixie", "usr/bin/containerd")?;
    Ok(program.parent().map(PathBuf::from))
}

/// The version in `containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let word = text.split_whitespace().nth(2)?.trim_start_matches('v');
    let mut numbers = word.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::{OLDEST, parse_version};

    #[test]
    fn versions_compare_by_number() {
        let of = |version: &str| parse_version(&format!("containerd github.com/x/y {version} z"));
        assert!(of("1.6.20~ds1").unwrap() < OLDEST);
        assert!(of("1.7.24~ds1").unwrap() >= OLDEST);
        assert!(of("v2.1.4").unwrap() > OLDEST);
        assert_eq!(parse_version("containerd"), None);
    }
}
