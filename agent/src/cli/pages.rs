//! What packages ship beside the program: completions of shells, and pages of the manual.

use super::{Cli, print};
use anyhow::Context as _;
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// The folder, like /usr/share/man/man1.
    folder: PathBuf,
}

pub(super) fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    print(&text(args.shell))?;
    Ok(ExitCode::SUCCESS)
}

fn text(shell: Shell) -> String {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), env!("CARGO_PKG_NAME"), &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

pub(super) fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let command = Cli::command().disable_help_subcommand(true);
    let folder = &args.folder;
    clap_mangen::generate_to(command, folder)
        .with_context(|| format!("cannot write pages into {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod document_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_completes_commands_and_options() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = text(shell);
            for word in ["doctor", "completions", "watch", "no-such-word"] {
                assert_eq!(text.contains(word), word != "no-such-word", "{shell}: {word}");
            }
        }
    }

    #[test]
    fn every_command_that_people_type_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        man(&ManArgs { folder: folder.path().to_owned() }).unwrap();
        let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).ok();
        assert!(page("gpuwho.1").unwrap().contains("Exit codes"));
        assert!(page("gpuwho-doctor.1").is_some() && page("gpuwho-config-check.1").is_some());
        assert_eq!(page("gpuwho-device-reader.1"), None, "the agent's own");
    }
}
