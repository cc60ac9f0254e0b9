//! Each command that a document shows is one that the program takes.

use crate::cli::Cli;
use clap::Parser as _;
use clap::error::ErrorKind::{DisplayHelp, DisplayVersion, MissingRequiredArgument};
use std::fs;
use std::path::{Path, PathBuf};

/// What stands for a value in a synopsis, and one that fits.
const VALUES: &[(&str, &str)] =
    &[("SECONDS", "2"), ("ADDR", "127.0.0.1:9464"), ("TIME", "10m"), ("SHELL", "bash")];

/// The documents below a folder.
fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_text = entry.extension().is_some_and(|end| end == "md") && name != "CHANGELOG.md";
        if entry.is_dir() && !["target", ".git", "crates", "src"].contains(&&*name) {
            documents(&entry, found);
        } else if is_text {
            found.push(entry);
        }
    }
}

/// What stands in backticks, and the lines of blocks.
fn code(text: &str) -> Vec<&str> {
    let mut in_block = false;
    let of_line = |line| -> Vec<&str> {
        match line {
            line if str::trim_start(line).starts_with("```") => {
                in_block = !in_block;
                Vec::new()
            }
            line if in_block => vec![line],
            line => line.split('`').skip(1).step_by(2).collect(),
        }
    };
    text.lines().flat_map(of_line).collect()
}

/// The command with each of the alternatives of its synopsis: `[--json\|--brief]`.
fn forms(code: &str) -> Vec<Vec<String>> {
    let code = code.trim().trim_start_matches("$ ").trim_start_matches("sudo ");
    let drawn = code.contains('─');
    let Some(rest) = code.strip_prefix("gpuwho ").filter(|_| !drawn) else { return Vec::new() };
    let ends = [" |", " >", " &&", " #", ";"].map(|end| rest.find(end));
    let end = ends.into_iter().flatten().min().unwrap_or(rest.len());
    let rest = rest[..end].replace(['[', ']'], "");
    let mut forms = vec![vec!["gpuwho".to_owned()]];
    for word in rest.split_whitespace() {
        let value =
            |word: &str| VALUES.iter().find(|(name, _)| *name == word).map(|(_, value)| *value);
        let words: Vec<_> = word.split(['|', '\\']).filter(|word| !word.is_empty()).collect();
        let with = |form: &Vec<String>| {
            let longer =
                |word: &&str| [form.clone(), vec![value(word).unwrap_or(word).to_owned()]].concat();
            words.iter().map(longer).collect::<Vec<_>>()
        };
        forms = forms.iter().flat_map(with).collect();
    }
    forms
}

#[test]
fn every_command_of_the_documents_is_one_that_the_program_takes() {
    let mut files = Vec::new();
    documents(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")), &mut files);
    let (mut wrong, mut count) = (Vec::new(), 0);
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for form in code(&text).into_iter().flat_map(forms) {
            count += 1;
            let Err(error) = Cli::try_parse_from(&form) else { continue };
            // A text may name a command without its arguments.
            if ![DisplayHelp, DisplayVersion, MissingRequiredArgument].contains(&error.kind()) {
                let why = error.to_string();
                let why = why.lines().next().unwrap_or_default();
                wrong.push(format!("{}: {}: {why}", file.display(), form.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count > 80, "{count} commands");
}

/// What a symptom of troubleshooting.md quotes is a text of the program.
#[test]
fn the_symptoms_of_troubleshooting_are_texts_of_the_program() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let page = fs::read_to_string(root.join("agent/docs/troubleshooting.md")).unwrap();
    let mut sources = String::new();
    let mut folders = vec![root.join("agent")];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                sources.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    // A text that goes on in the next line of its source.
    let sources = sources.replace("\\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let quoted = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let parts = quoted.flat_map(|text| text.split(['…', '/'])).map(str::trim);
    let is_text = |part: &&str| part.contains(' ') && !part.contains('{');
    let unknown: Vec<_> = parts.filter(is_text).filter(|part| !sources.contains(part)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
