//! Answers to a wrong command line that say more than clap does.

use super::Cli;
use clap::error::{ContextKind, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _};

/// For who types what other programs of this kind take.
pub(super) fn in_words(error: clap::Error) -> clap::Error {
    let word = error.get(ContextKind::InvalidSubcommand).map(ToString::to_string);
    let Some(word) = word.filter(|word| ["ps", "watch", "list"].contains(&&**word)) else {
        return error;
    };
    let text = format!("no command `{word}`: `gpuwho` prints the table, `gpuwho top` watches it");
    Cli::command().error(ErrorKind::InvalidSubcommand, text)
}

/// An option of `gpuwho` alone before a command, which would ignore it; every one takes the output's format.
pub(super) fn misplaced(matches: &ArgMatches) -> Option<clap::Error> {
    let (name, _) = matches.subcommand()?;
    let command = Cli::command();
    let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let mut given = command.get_arguments().filter(|arg| is_given(arg.get_id().as_str()));
    let option = given.find(|arg| !arg.is_global_set())?.get_long()?;
    let text =
        format!("--{option} before `{name}` has no effect: write it after `{name}`, if it has it");
    Some(Cli::command().error(ErrorKind::ArgumentConflict, text))
}
