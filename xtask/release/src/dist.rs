//! `cargo xtask dist`: all files of a release, for every processor: tarballs, packages, the image, the
//! chart, licences, lists of dependencies, checksums. Offline once the tools are in the cache, and the
//! same bytes every time from one state of the repository at one path.

mod base;
mod binary;
mod contents;
mod golden;
mod image;
mod inventory;
mod packages;

use anyhow::{Context as _, Result, ensure};
use binary::{PROCESSORS, Processor};
use contents::{FILES, LICENCES, PROGRAM};
use image::Image;
use packages::Format;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use xtask::archive::{Stage, checksum, compress};
use xtask::setup::{self, Want};
use xtask::{chart, place, shell};

/// What `cargo xtask dist` can be asked.
#[derive(clap::Args)]
pub(crate) struct Request {
    /// Where to put the files; default: target/dist/VERSION
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Package FOLDER/x86_64/gpuwho and FOLDER/aarch64/gpuwho instead of building
    #[arg(long, value_name = "FOLDER", conflicts_with = "twice")]
    programs: Option<PathBuf>,
    /// Write xtask/release/dist-contents.txt anew instead of comparing with it
    #[arg(long)]
    accept: bool,
    /// Only name the newest packages of Debian, security updates included, in xtask/release/image-packages.txt: the
    /// image is made of those
    #[arg(long, exclusive = true)]
    renew_base: bool,
    /// Make everything twice, each with a build of its own, and compare
    #[arg(long)]
    twice: bool,
}

/// A release in the making.
struct Release {
    version: String,
    /// The time that all files have: the last commit's, in seconds since 1970.
    epoch: u64,
    /// Where the files go.
    out: PathBuf,
}

impl Release {
    fn new(out: PathBuf) -> Result<Self> {
        let commit = ["log", "-1", "--format=%ct"];
        let epoch = shell::capture(&mut shell::program("git", commit))?;
        let epoch = epoch.trim().parse().context("reading the last commit's time")?;
        // xtask's version is the workspace's.
        Ok(Self { version: env!("CARGO_PKG_VERSION").to_owned(), epoch, out })
    }

    /// The time as RFC 3339.
    fn time(&self) -> String {
        humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(self.epoch)).to_string()
    }
}

/// `cargo xtask dist`.
pub(crate) fn dist(request: &Request) -> Result<()> {
    if request.renew_base {
        return base::renew();
    }
    setup::ensure(&["build", "bpf", "dist"], Want::Must)?;
    let work = place::target("dist");
    let version = env!("CARGO_PKG_VERSION");
    let out = request.out.clone().unwrap_or_else(|| work.join(version));
    let release = Release::new(out.clone())?;
    let built = request.programs.as_deref();
    let sums = make(&release, &place::target(""), built, request.accept)?;
    print!("{sums}");
    if request.twice {
        let again = Release { out: work.join("again").join(version), ..release };
        let other = make(&again, &work.join("again"), None, false)?;
        ensure!(sums == other, "made again, the files are others:\n{other}");
        println!("made twice, the same bytes");
    }
    println!("{}", out.display());
    Ok(())
}

/// Makes all files, with these programs or with those that it builds below `target`, and gives their
/// checksums.
fn make(release: &Release, target: &Path, built: Option<&Path>, accept: bool) -> Result<String> {
    let out = Stage::new(&release.out)?;
    let work = target.join("dist/work");
    let mut image = Image::new(&work)?;
    let mut listings = Vec::new();
    for processor in PROCESSORS {
        let made = Stage::new(&work.join(processor.name))?;
        let program = match built {
            Some(folder) => folder.join(processor.name).join(PROGRAM),
            None => processor.compile(target, "shipped")?,
        };
        binary::check_glibc(&program)?;
        made.copy(&program, PROGRAM, 0o755)?;
        stage_licences(&made, processor)?;
        let made = made.folder();
        let base = base(&release.version, processor);
        inventory::write_bill_of_materials(
            &program,
            &release.out.join(base.clone() + ".cdx.json"),
        )?;
        write_tarball(release, made, &base)?;
        for format in [Format::Deb, Format::Rpm] {
            let package = packages::write(format, release, processor, made)?;
            let name = format!("{format:?} for {}", processor.name);
            listings.push((name, packages::list(format, &package)?));
        }
        let listing = image.add(release, processor, made)?;
        listings.push((format!("image for {}", processor.name), golden::entries(&listing)));
        start(processor, &made.join("root"))?;
        if processor.name == std::env::consts::ARCH {
            start(processor, &image::oldest_root(processor, made)?)?;
        }
    }
    let archive = release.out.join(format!("gpuwho-{}-oci.tar", release.version));
    image.write(release, &work, &archive)?;
    chart::package(&release.out, release.epoch)?;
    listings.iter().try_for_each(|(_, entries)| golden::check_modes(entries))?;
    golden::compare(&golden::text(&listings), accept)?;
    let sums = sums(out.folder())?;
    out.write(sums.as_bytes(), "SHA256SUMS", 0o644)?;
    Ok(sums)
}

/// The name of a processor's tarball, and of the folder in it.
fn base(version: &str, processor: &Processor) -> String {
    format!("gpuwho-{version}-linux-{}", processor.name)
}

fn this_processor() -> Result<&'static Processor> {
    let here = |processor: &&Processor| processor.name == std::env::consts::ARCH;
    PROCESSORS.iter().find(here).context("no release file is for this processor")
}

/// The Debian package alone, for this machine's processor, made in `out` as a release's is, but built
/// without whole-program optimisation: for tests.
pub(crate) fn deb(out: &Path) -> Result<PathBuf> {
    setup::ensure(&["build", "bpf", "dist"], Want::Must)?;
    let processor = this_processor()?;
    let program = processor.compile(&place::target(""), "measure")?;
    binary::check_glibc(&program)?;
    let made = Stage::new(&out.join("made"))?;
    stage_stripped(&made, &program)?;
    stage_licences(&made, processor)?;
    packages::write(Format::Deb, &Release::new(out.to_owned())?, processor, made.folder())
}

/// The RPM of the program in a Debian package, and the same as a newer version: for tests.
pub(crate) fn rpms(deb: &Path, out: &Path) -> Result<[PathBuf; 2]> {
    let processor = this_processor()?;
    let made = Stage::new(&out.join("made-rpm"))?;
    let unpacked = out.join("unpacked");
    shell::run(shell::program("dpkg-deb", ["-x"]).arg(deb).arg(&unpacked))?;
    made.copy(&unpacked.join("usr/bin/gpuwho"), PROGRAM, 0o755)?;
    stage_licences(&made, processor)?;
    let older = Release::new(out.to_owned())?;
    let newer =
        Release { version: format!("{}.1", older.version), ..Release::new(out.to_owned())? };
    let write = |release: &Release| packages::write(Format::Rpm, release, processor, made.folder());
    Ok([write(&older)?, write(&newer)?])
}

/// A program without its symbols, as a release's is.
fn stage_stripped(made: &Stage, program: &Path) -> Result<()> {
    made.write(b"", PROGRAM, 0o755)?;
    let mut strip = shell::program("strip", ["-o"]);
    shell::run(strip.arg(made.folder().join(PROGRAM)).arg(program))
}

fn stage_licences(made: &Stage, processor: &Processor) -> Result<()> {
    let licences = inventory::licences(&format!("{}-unknown-linux-gnu", processor.name))?;
    made.write(licences.as_bytes(), LICENCES, 0o644)
}

/// The image alone, of another program for this machine's processor: for tests. The program is
/// stripped: a debug build's own tables are too many for a layer.
pub(crate) fn image_of(program: &Path, to: &Path) -> Result<()> {
    let release = Release::new(PathBuf::new())?;
    let processor = this_processor()?;
    let work = place::target("dist/one");
    let mut image = Image::new(&work)?;
    let made = Stage::new(&work.join(processor.name))?;
    stage_stripped(&made, program)?;
    stage_licences(&made, processor)?;
    image.add(&release, processor, made.folder())?;
    image.write(&release, &work, to)
}

/// All files of an installation in one folder.
fn write_tarball(release: &Release, made: &Path, base: &str) -> Result<()> {
    let stage = Stage::new(&made.join("tarball"))?;
    for file in FILES {
        let name = Path::new(file.path).file_name().context("a path without a name")?;
        stage.copy(&file.source(made), &format!("{base}/{}", name.display()), file.mode)?;
    }
    let tar = release.out.join(format!("{base}.tar"));
    stage.tar(&tar, &[base], release.epoch)?;
    compress(&tar)
}

/// Starts the program with the C library of a root folder; that of another processor in QEMU.
fn start(processor: &Processor, root: &Path) -> Result<()> {
    let mut command = if processor.name == std::env::consts::ARCH {
        let mut command = shell::program("unshare", ["--map-root-user", "chroot"]);
        command.arg(root).arg("/usr/bin/gpuwho");
        command
    } else {
        let mut command = shell::program(format!("qemu-{}", processor.name), ["-L"]);
        command.arg(root).arg(root.join("usr/bin/gpuwho"));
        command
    };
    let text = shell::capture(command.arg("--version"))?;
    let wanted = format!("gpuwho {}", env!("CARGO_PKG_VERSION"));
    ensure!(text.trim() == wanted, "in {} it prints {text:?}", root.display());
    Ok(())
}

/// One line `CHECKSUM  NAME` a file, as `sha256sum --check` reads them.
fn sums(folder: &Path) -> Result<String> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let line = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(format!("{}  {name}\n", checksum(path)?))
    };
    paths.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::binary::PROCESSORS;
    use super::contents::PROGRAM;
    use xtask::place;

    #[test]
    fn binstall_looks_for_each_tarball_and_for_the_program_in_it() {
        let manifest = std::fs::read_to_string(place::root().join("agent/Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let overrides = &manifest["package"]["metadata"]["binstall"]["overrides"];
        assert_eq!(overrides.as_table().unwrap().len(), PROCESSORS.len());
        for processor in PROCESSORS {
            let found = &overrides[format!("{}-unknown-linux-gnu", processor.name).as_str()];
            let values = [
                ("repo", "https://example.org/x"),
                ("version", "1.2.3"),
                ("target-arch", processor.name),
                ("bin", PROGRAM),
            ];
            let rendered = |key: &str| {
                let template = found[key].as_str().unwrap().to_owned();
                values.iter().fold(template, |text, (name, value)| {
                    text.replace(&format!("{{ {name} }}"), value)
                })
            };
            let base = super::base("1.2.3", processor);
            let url = format!("https://example.org/x/releases/download/v1.2.3/{base}.tar.gz");
            assert_eq!(rendered("pkg-url"), url);
            assert_eq!(rendered("bin-dir"), format!("{base}/{PROGRAM}"));
            assert_eq!(rendered("pkg-fmt"), "tgz");
        }
    }
}
