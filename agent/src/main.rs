//! The `gpuwho` command.

use anyhow::{Context as _, bail};
use gpuwho::collect::device::{self, child};
use std::env;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ["device-reader", vendor, "--library", library] = words.as_slice() else {
        bail!("usage: gpuwho device-reader VENDOR --library PATH");
    };
    let vendor = device::vendor(vendor).context("no such vendor")?;
    let settings = child::Settings { vendor, library: PathBuf::from(library), stall: child::STALL };
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    Ok(child::serve(&settings, socket)?)
}
