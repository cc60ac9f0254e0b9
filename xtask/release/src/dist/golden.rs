//! What packages and image contain, as a file that reviewers read: mode, owner and path of each entry.
//! `cargo xtask dist --accept` writes it.

use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::PathBuf;
use xtask::place;

/// The file.
const GOLDEN: &str = "xtask/release/dist-contents.txt";

/// The lines `MODE OWNER PATH`, sorted, of a listing as `tar --list --verbose` writes them.
pub(super) fn entries(listing: &str) -> Vec<String> {
    let mut entries: Vec<_> = listing.lines().filter_map(entry).collect();
    entries.sort_by(|one, other| path_of(one).cmp(path_of(other)));
    entries
}

/// `-rwxr-xr-x root/root 123 2026-01-01 00:00 ./usr/bin/x`; a link goes on with ` -> target`.
fn entry(line: &str) -> Option<String> {
    let mut rest = line;
    let mut words = Vec::new();
    for _ in 0..5 {
        let (word, after) = rest.trim_start().split_once(' ')?;
        words.push(word);
        rest = after;
    }
    let [mode, owner, ..] = *words else { return None };
    let owner = if owner == "0/0" { "root/root" } else { owner };
    let path = rest.trim_start().trim_start_matches('.').trim_start_matches('/');
    let path = path.trim_end_matches('/');
    (!path.is_empty()).then(|| format!("{mode} {owner} /{path}"))
}

fn path_of(entry: &str) -> &str {
    entry.splitn(3, ' ').nth(2).unwrap_or_default()
}

/// Fails where an entry is another user's, or others may write it, or it gives its owner's rights away.
pub(super) fn check_modes(entries: &[String]) -> Result<()> {
    match entries.iter().find(|entry| !is_safe(entry)) {
        Some(entry) => bail!("{entry}: not root's alone to write, or setuid"),
        None => Ok(()),
    }
}

fn is_safe(entry: &str) -> bool {
    let (mode, rest) = entry.split_once(' ').unwrap_or_default();
    let is_link = mode.starts_with('l');
    let bit = |at: usize| mode.as_bytes().get(at).copied().unwrap_or_default();
    let special = [3, 6, 9].iter().any(|at| b"sStT".contains(&bit(*at)));
    rest.starts_with("root/root ") && (is_link || (bit(5) == b'-' && bit(8) == b'-' && !special))
}

/// The text of all listings, each below its name.
pub(super) fn text(listings: &[(String, Vec<String>)]) -> String {
    let section =
        |(name, entries): &(String, Vec<String>)| format!("[{name}]\n{}\n\n", entries.join("\n"));
    listings.iter().map(section).collect()
}

/// Compares with the file, or writes it.
pub(super) fn compare(text: &str, accept: bool) -> Result<()> {
    let path = path();
    if accept {
        return fs::write(&path, text).with_context(|| format!("writing {}", path.display()));
    }
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    for line in wanted.lines().filter(|line| !text.lines().any(|other| other == *line)) {
        println!("- {line}");
    }
    for line in text.lines().filter(|line| !wanted.lines().any(|other| other == *line)) {
        println!("+ {line}");
    }
    if wanted != text {
        bail!("{GOLDEN} differs: `cargo xtask dist --accept` if that is what should be shipped");
    }
    Ok(())
}

fn path() -> PathBuf {
    place::root().join(GOLDEN)
}

#[cfg(test)]
mod tests {
    use super::super::contents::FILES;
    use super::{check_modes, entries, path, text};

    const LISTING: &str = "\
drwxr-xr-x root/root         0 2026-01-01 00:00 ./
-rw-r--r-- 0/0            3 2026-01-01 00:00 ./usr/a b
-rwxr-xr-x root/root      3 2026-01-01 00:00 ./usr/a
lrwxrwxrwx root/root      0 2026-01-01 00:00 ./lib -> usr/lib
";

    #[test]
    fn a_listing_becomes_modes_owners_and_paths() {
        assert_eq!(
            entries(LISTING),
            [
                "lrwxrwxrwx root/root /lib -> usr/lib",
                "-rwxr-xr-x root/root /usr/a",
                "-rw-r--r-- root/root /usr/a b"
            ]
        );
        assert!(check_modes(&entries(LISTING)).is_ok());
    }

    #[test]
    fn what_others_may_write_or_what_is_setuid_or_not_roots_is_refused() {
        for bad in ["-rw-rw-r-- root/root", "-rw-r--rw- root/root", "-rwsr-xr-x root/root"]
            .into_iter()
            .chain(["-rwxr-sr-x root/root", "drwxr-xr-t root/root", "-rw-r--r-- 1000/root"])
        {
            let listed = entries(&format!("{bad} 3 2026-01-01 00:00 ./x\n"));
            assert_eq!(listed.len(), 1, "{bad}");
            assert!(check_modes(&listed).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_accepted_contents_are_safe_and_have_every_file() {
        let golden = std::fs::read_to_string(path()).unwrap();
        let lines: Vec<_> = golden.lines().filter(|line| line.contains(" root/root /")).collect();
        let lines: Vec<_> = lines.into_iter().map(str::to_owned).collect();
        assert!(check_modes(&lines).is_ok());
        for file in FILES {
            // In both packages of both processors at the least.
            let end = format!(" {}", file.path);
            assert!(lines.iter().filter(|line| line.ends_with(&end)).count() >= 4, "{}", file.path);
        }
    }

    #[test]
    fn each_listing_stands_below_its_name() {
        let listings = [("deb".to_owned(), entries(LISTING)), ("rpm".to_owned(), Vec::new())];
        let text = text(&listings);
        assert!(text.starts_with("[deb]\nlrwx"), "{text}");
        assert!(text.ends_with("a b\n\n[rpm]\n\n\n"), "{text}");
    }
}
