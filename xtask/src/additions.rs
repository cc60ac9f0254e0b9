//! What adding a thing costs: a throw-away engine, vendor, source, sink and command, each as the patch
//! that adds it. The tests see that the patches fit the sources and count their lines; the slow suite
//! `additions` compiles them.

use crate::{place, shell};
use anyhow::{Context as _, Result};
use std::fs;
use std::path::PathBuf;

/// Each thing, with the lines that it needs in files other than its own.
const ADDITIONS: &[(&str, usize)] =
    &[("command", 4), ("engine", 3), ("sink", 3), ("source", 3), ("vendor", 3)];

fn patch(name: &str) -> PathBuf {
    place::root().join("xtask/additions").join(name).with_extension("patch")
}

/// Compiles the agent with all of them, in a copy of what git has of the sources.
pub(crate) fn compile() -> Result<()> {
    let work = place::target("additions");
    let tree = work.join("tree");
    if tree.exists() {
        fs::remove_dir_all(&tree).with_context(|| format!("removing {}", tree.display()))?;
    }
    let prefix = format!("--prefix={}/", tree.display());
    shell::run(&mut shell::program("git", ["checkout-index", "--all", &prefix]))?;
    for (name, _) in ADDITIONS {
        // Not as a part of the repository around it, where git would look for the files.
        let mut apply = shell::program("git", ["apply"]);
        apply.arg(patch(name)).current_dir(&tree).env("GIT_CEILING_DIRECTORIES", &work);
        shell::run(&mut apply)?;
    }
    let mut check = shell::cargo(["check", "--package", "gpuwho", "--target-dir"]);
    shell::run(check.arg(work.join("target")).current_dir(&tree))
}

#[cfg(test)]
mod tests {
    use super::{ADDITIONS, patch};
    use crate::shell;
    use std::fs;

    /// Lines that a patch adds to files that are there.
    fn lines_elsewhere(patch: &str) -> usize {
        let is_old = |file: &&str| !file.contains("\nnew file mode");
        let files = patch.split("diff --git ").filter(is_old);
        let is_added = |line: &&str| line.starts_with('+') && !line.starts_with("+++");
        files.flat_map(str::lines).filter(is_added).count()
    }

    #[test]
    fn each_thing_is_a_file_of_its_own_and_the_promised_lines() {
        for (name, promised) in ADDITIONS {
            let text = fs::read_to_string(patch(name)).unwrap();
            assert_eq!(text.matches("\nnew file mode").count(), 1, "{name}");
            assert_eq!(lines_elsewhere(&text), *promised, "{name}");
            let check = &mut shell::program("git", ["apply", "--check"]);
            let fits = shell::capture(check.arg(patch(name)));
            assert!(fits.is_ok(), "{name} fits no more, renew it with `git diff -U1`: {fits:?}");
        }
        assert_eq!(fs::read_dir(patch("any").parent().unwrap()).unwrap().count(), ADDITIONS.len());
    }
}
