//! Checks values that have the right type: a wrong one is an error with the key, the problem and
//! what to write instead.

use super::ConfigError;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use tracing_subscriber::EnvFilter;

/// Largest configuration file. The sample has 7 KiB.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The first bytes of every shared library.
const ELF: [u8; 4] = *b"\x7fELF";

/// Reads a regular file up to a bound. Reading a pipe could block, and `/dev/zero` has no end.
pub fn read(path: &Path) -> io::Result<String> {
    let file = regular(path)?;
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("it is longer than {MAX_FILE_BYTES} bytes")));
    }
    Ok(text)
}

/// Checks that paths are absolute, because the agent's working directory has no meaning on the
/// host.
pub fn absolute<P: AsRef<Path>>(
    paths: impl IntoIterator<Item = (impl AsRef<str>, P)>,
) -> Result<(), ConfigError> {
    for (key, path) in paths {
        let path = path.as_ref();
        if !path.is_absolute() {
            let problem = format!("`{}` is not an absolute path", path.display());
            return Err(wrong(key.as_ref(), problem, "begin it with /"));
        }
    }
    Ok(())
}

/// Parses the mode of the public socket, in octal.
pub fn socket_mode(mode: Option<String>, default: u32) -> Result<u32, ConfigError> {
    let Some(text) = mode else { return Ok(default) };
    // Without a sign, and permission bits only.
    let mode = Some(&*text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let mode = mode.and_then(|text| u32::from_str_radix(text, 8).ok());
    mode.filter(|mode| *mode <= 0o777).ok_or_else(|| {
        let problem = format!("`{text}` is not a mode");
        wrong(
            "paths.socket_mode",
            problem,
            "write it in octal: 0666 for every user, 0660 for a group",
        )
    })
}

/// Checks patterns of device nodes: absolute paths, not directly in `/` or `/dev` with `*` alone;
/// the last part may end in `*`.
pub fn nodes(nodes: &[String]) -> Result<(), ConfigError> {
    for node in nodes {
        let (folder, name) = node.rsplit_once('/').unwrap_or(("", node));
        let stem = name.strip_suffix('*').unwrap_or(name);
        let is_any = stem.is_empty() && ["", "/dev"].contains(&folder);
        let is_plain = |part: &str| !part.contains('*') && part != "..";
        if !node.starts_with('/')
            || name.is_empty()
            || is_any
            || !is_plain(stem)
            || !folder.split('/').all(is_plain)
        {
            let problem = format!("`{node}` is not a pattern of device nodes");
            let remedy = "write absolute paths like /dev/nvidia0 or /dev/nvidia*; a * only at the end, \
                          and not alone in / or /dev";
            return Err(wrong("devices.nodes", problem, remedy));
        }
    }
    Ok(())
}

/// Checks a vendor's library: a name, or the absolute path of a shared library.
pub fn library(key: &str, name: &str, path: &Path) -> Result<(), ConfigError> {
    let shown = path.display();
    let remedy = format!("name the driver's library, like {name}, or leave the key out");
    let refuse = |problem| Err(wrong(key, problem, &remedy));
    if path.file_name().is_none() {
        return refuse(format!("`{shown}` names no library"));
    }
    if path.parent() == Some(Path::new("")) {
        return Ok(());
    }
    absolute([(key, path)])?;
    let mut start = [0; ELF.len()];
    match regular(path).and_then(|mut file| file.read_exact(&mut start)) {
        Ok(()) if start == ELF => Ok(()),
        // The library may be installed later, or the check may run on another host.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Ok(()) | Err(_) => refuse(format!("`{shown}` is not a shared library")),
    }
}

/// Checks what to log. `tracing` takes any word for a target, so that a misspelt level would silence
/// the agent, errors included.
pub fn log(key: &str, text: &str) -> Result<(), ConfigError> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word.trim()));
    // A filter of fields, in brackets, may hold commas itself.
    let is_meant = |part: &str| is_level(part) || part.contains(['=', '[', ']', '{', '}']);
    if text.split(',').all(is_meant) && EnvFilter::try_new(text).is_ok() {
        return Ok(());
    }
    let problem = format!("`{text}` is not a level and not a filter");
    let remedy = "write error, warn, info, debug or trace, or a filter like \
                  info,gpuwho::export=debug";
    Err(wrong(key, problem, remedy))
}

fn regular(path: &Path) -> io::Result<File> {
    // `open` neither waits for a pipe's writer nor makes a terminal the controlling one.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.file_type() {
        kind if kind.is_dir() => Err(io::Error::from(io::ErrorKind::IsADirectory)),
        kind if kind.is_file() => Ok(file),
        _ => Err(io::Error::other("it is not a regular file")),
    }
}

/// An error about a value.
pub fn wrong(key: &str, problem: String, remedy: &str) -> ConfigError {
    ConfigError::Value { key: key.into(), problem, remedy: remedy.into() }
}
