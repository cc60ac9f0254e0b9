//! Keys of the configuration that are gone. A file that still sets one is read with a warning, so that
//! an upgrade does not stop the agent; the release after `since` refuses it, and has no row of it.

use gpuwho_model::config::RemovedKey;

/// All of them.
pub static REMOVED: &[RemovedKey] = &[
    RemovedKey {
        section: "cost",
        key: "list_prices",
        since: "0.1.0",
        instead: "a device has a price where a row of cost.prices fits",
    },
    RemovedKey {
        section: "kubernetes",
        key: "pods_api",
        since: "0.1.0",
        instead: "pods come from the runtime's CRI socket, kubernetes.cri",
    },
    RemovedKey {
        section: "nccl",
        key: "hooks",
        since: "0.1.0",
        instead: "a library that is loaded late is found within 30 s",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::configuration::Configuration;

    /// Every key of the sample configuration of 0.1.0, before any was removed; a fuzz target begins with it, too.
    const BEFORE: &str = include_str!("../../../tests/fuzz/corpus/configuration/every_key");

    #[test]
    fn every_key_of_before_is_read_and_those_that_are_gone_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gpuwho.toml");
        std::fs::write(&file, BEFORE).unwrap();
        let read = Configuration::check(&file).unwrap();
        let named: Vec<_> =
            read.warnings().iter().filter_map(|line| line.split('`').nth(1)).collect();
        assert_eq!(named, ["cost.list_prices", "kubernetes.pods_api"]);
    }

    #[test]
    fn a_removed_key_is_named_with_its_place_and_the_others_are_as_set() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gpuwho.toml");
        std::fs::write(&file, "[nccl]\nbudget = 7\nhooks = 3\n").unwrap();
        let env = [("GPUWHO_NCCL_HOOKS".to_owned(), "true".to_owned())];
        let read = Configuration::load(Some(&file), &env, &<_>::default()).unwrap();
        let rest = "`nccl.hooks` has no effect from 0.1.0 on (a library that is loaded late is found \
                    within 30 s): remove it, the next release does not know it";
        let places =
            [format!("{}:3", file.display()), format!("environment variable {}", env[0].0)];
        assert_eq!(read.warnings(), places.map(|place| format!("{place}: {rest}")));
        // A key that never was is refused as before.
        std::fs::write(&file, "[nccl]\nhook = 3\n").unwrap();
        assert!(Configuration::check(&file).is_err());
    }

    #[test]
    fn the_release_after_knows_them_no_more() {
        let late = REMOVED.iter().filter(|row| row.since != env!("CARGO_PKG_VERSION"));
        assert_eq!(late.map(|row| row.key).collect::<Vec<_>>(), Vec::<&str>::new());
    }
}
