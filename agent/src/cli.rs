//! The command line: what each command takes, and its exit code (0 done, 1 failed, 2 wrong usage
//! or configuration, 3 no accelerator). A sentence of the help has 25 words at most.

mod append;
mod doctor;
mod events;
mod health;
mod pages;
mod receipt;
mod run;
mod screen;
mod show;
mod top;
mod who;
mod wrong;

use crate::agent::configuration::Configuration;
use crate::agent::probes::PROBES;
use crate::agent::reload::Load;
use crate::agent::{sinks, sources};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use gpuwho_export::prometheus::def::DEFAULT_ADDRESS;
use gpuwho_model::config::{ConfigError, Flags};
use gpuwho_model::text::printable_lines;
use gpuwho_sys::memory;
use std::path::PathBuf;
use std::process::ExitCode;
use wrong::{in_words, misplaced};

const AFTER: &str = "\
Settings: the file, then environment variables, then flags. The file is --config, or
/etc/gpuwho/gpuwho.toml. Variables: GPUWHO_<SECTION>_<KEY>, and OTEL_EXPORTER_OTLP_* for the receiver.
`gpuwho config sample` prints every key with its default.

Exit codes: 0 done, 1 failed or nothing matches, 2 wrong usage or configuration, 3 no accelerator.";

/// The exit code where there is no accelerator to look at.
const NO_DEVICE: u8 = 3;

/// The exit code where there is no receipt of a name.
const NO_RECEIPT: u8 = 1;

const USUAL_FILE: &str = "/etc/gpuwho/gpuwho.toml";

/// Show who uses every accelerator, what it costs, and whether the hardware is healthy.
///
/// Without a command: print each accelerator and who is on it. The running agent answers; without one,
/// the devices are read once.
#[derive(Debug, Parser)]
#[command(name = "gpuwho", version, after_help = AFTER)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    who: who::WhoArgs,
}

#[derive(Clone, Debug, Default, Args)]
struct Common {
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE", env = "GPUWHO_CONFIG")]
    config: Option<PathBuf>,
    /// Path of NVIDIA's management library (default: libnvidia-ml.so.1).
    #[arg(long, value_name = "PATH")]
    nvidia_library: Option<PathBuf>,
    /// Log level on standard error: error, warn, info, debug, trace, or a filter like
    /// info,gpuwho::export=debug.
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent: read devices, find who uses them, export, until stopped.
    Agent(AgentArgs),
    /// Read sources without an agent and write their points.
    Collect(CollectArgs),
    /// Watch accelerators and owners on the terminal: history, owners, engines, health.
    Top(top::TopArgs),
    /// Show recent device events: meaning, remedy and affected users.
    Events(events::EventsArgs),
    /// Check device health; exit code for scripts.
    Health(health::HealthArgs),
    /// Show the GPU time, energy and cost of a job, pod or unit.
    Receipt(receipt::ReceiptArgs),
    /// Check this host: what works, what does not, and the remedy.
    Doctor(doctor::DoctorArgs),
    /// List every metric that the agent can send.
    Metrics(MetricsArgs),
    /// Check a configuration file, or print a sample.
    Config(ConfigArgs),
    /// Close all devices for a while, for a driver upgrade or a GPU reset.
    Release(ReleaseArgs),
    /// End a release now: reopen the devices.
    Resume(SocketArgs),
    /// Forget a removed device, or the recorded PCIe link of one that is present.
    Forget(ForgetArgs),
    /// Print shell completions: gpuwho completions bash > /etc/bash_completion.d/gpuwho
    Completions(pages::CompletionsArgs),
    /// Print the version.
    Version,
    /// Write the manual's pages into a folder, for packages.
    #[command(hide = true)]
    Man(pages::ManArgs),
    /// A vendor library's reader: the agent starts this itself.
    #[command(hide = true)]
    DeviceReader(ReaderArgs),
    /// Reads files and memory of tenants, which may hang: the agent starts this itself.
    #[command(hide = true)]
    FileReader(FileReaderArgs),
    /// Adds a line from standard input to a user's file, with that user's rights alone: for hooks of root.
    #[command(hide = true)]
    AppendLine(append::AppendArgs),
    /// Load and exercise every BPF program on this kernel.
    #[command(hide = true)]
    SelfTest(SelfTestArgs),
}

#[derive(Debug, Args)]
struct AgentArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct Output {
    /// Let Prometheus scrape the agent at this address; /healthz and /readyz are there too.
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = DEFAULT_ADDRESS)]
    prometheus: Option<String>,
    /// Time between readings, like 10s.
    #[arg(long, value_name = "TIME")]
    interval: Option<String>,
    /// OTLP receiver, like http://host:4318. Without a scheme: TLS, or plain text to this host. Port
    /// 4317 is gRPC.
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    #[arg(long, value_name = "SINK", value_parser = sinks::parse, help = sinks_help())]
    sink: Vec<String>,
}

fn sinks_help() -> String {
    format!(
        "Another place for points: {} (one JSON object a line); may be repeated",
        sinks::forms()
    )
}

fn sources_help() -> String {
    let line = |source: gpuwho_collect::source::SourceDef| {
        format!("\n  {:<16} {}", source.name, source.about)
    };
    let lines: String = sources::all().into_iter().map(line).collect();
    format!("Sources to read (default: the devices and the agent's own metrics):{lines}")
}

fn self_tests_help() -> String {
    let mut names: Vec<_> =
        PROBES.iter().flat_map(|probe| probe.self_tests).map(|test| test.name).collect();
    names.dedup();
    format!("One of: {}", names.join(", "))
}

#[derive(Debug, Args)]
struct CollectArgs {
    #[arg(help = sources_help())]
    names: Vec<String>,
    /// Read once, then exit.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct MetricsArgs {
    /// Only metrics whose name contains this.
    #[arg(value_name = "PART", conflicts_with = "markdown")]
    part: Option<String>,
    /// Print METRICS.md and its pages, each behind the name of its file.
    #[arg(long, conflicts_with_all = ["json", "output"])]
    markdown: bool,
}

#[derive(Debug, Args)]
struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Check a file: syntax, keys, values, certificates and folders. Print the most series and bytes
    /// that this host can send.
    Check {
        /// The file.
        file: PathBuf,
    },
    /// Print a file with every key, its default and its meaning.
    Sample,
}

#[derive(Debug, Args)]
struct SocketArgs {
    /// The agent's socket (default: gpuwho.sock in paths.run). Commands use gpuwho-admin.sock beside
    /// it, as root or as the agent's own user.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct ReleaseArgs {
    /// For how long, at most a day; the agent then reopens them.
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = who::time)]
    length: std::time::Duration,
    #[command(flatten)]
    socket: SocketArgs,
}

#[derive(Debug, Args)]
struct ForgetArgs {
    /// The device's UUID, from `gpuwho --json`.
    uuid: String,
    #[command(flatten)]
    socket: SocketArgs,
}

#[derive(Debug, Args)]
struct ReaderArgs {
    /// `nvidia`, ….
    vendor: String,
    /// The vendor's library, where it has one.
    #[arg(long)]
    library: Option<PathBuf>,
    /// Tell what happens to the devices on standard output.
    #[arg(long)]
    events: bool,
    /// A switch of the vendor's configuration section that is off.
    #[arg(long, value_name = "KEY")]
    without: Vec<String>,
    /// procfs in the host's PID namespace.
    #[arg(long, default_value = "/proc")]
    proc: PathBuf,
    /// sysfs.
    #[arg(long, default_value = "/sys")]
    sys: PathBuf,
    /// Keep the capabilities and the system calls that reading devices should not need.
    #[arg(long)]
    unconfined: bool,
    /// How long one device may keep the others waiting, in milliseconds.
    #[arg(long, value_name = "NUMBER")]
    stall_ms: Option<u64>,
}

#[derive(Debug, Args)]
struct FileReaderArgs {
    /// procfs in the host's PID namespace.
    #[arg(long)]
    proc: PathBuf,
}

#[derive(Debug, Args)]
struct SelfTestArgs {
    #[arg(help = self_tests_help(), required_unless_present = "list")]
    what: Option<String>,
    /// Only this way of doing it.
    #[arg(long)]
    hook: Option<String>,
    /// Print every self-test, and the unit tests that other kernels run: what `cargo xtask vm` runs.
    #[arg(long)]
    list: bool,
}

/// Wrong usage, as opposed to a failure.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// Runs the command; prints its error.
pub fn main() -> ExitCode {
    memory::keep_little();
    let matches = Cli::command().try_get_matches().unwrap_or_else(|error| in_words(error).exit());
    if let Some(error) = misplaced(&matches) {
        error.exit();
    }
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) => {
            // The one place that writes errors; a closed stderr leaves nobody to tell.
            let _ = std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("gpuwho: {}\n", printable_lines(&message(&error))),
            );
            let usage = error.is::<ConfigError>() || error.is::<Usage>();
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

/// The error and its causes; most of our errors have their cause in their own words already.
fn message(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |message, cause| match &*message {
        "" => cause,
        before if before.contains(&cause) => message,
        before => format!("{before}: {cause}"),
    })
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    let json = cli.who.is_json();
    match cli.command {
        None => who::who(&cli.who),
        Some(Command::Agent(args)) => run::run(&args, json),
        Some(Command::Collect(mut args)) => run::collect(&mut args),
        Some(Command::Top(args)) => top::top(&args),
        Some(Command::Events(args)) => events::events(&args, json),
        Some(Command::Health(args)) => health::health(&args, json),
        Some(Command::Receipt(args)) => receipt::receipt(&args, json),
        Some(Command::Doctor(args)) => doctor::doctor(&args, json),
        Some(Command::Metrics(args)) => show::metrics(&args, json),
        Some(Command::Config(args)) => show::config(&args.command, json),
        Some(Command::Release(args)) => show::release(&args, json),
        Some(Command::Resume(args)) => show::resume(&args, json),
        Some(Command::Forget(args)) => show::forget(&args, json),
        Some(Command::Completions(args)) => pages::completions(&args),
        Some(Command::Version) => show::version(json),
        Some(Command::Man(args)) => pages::man(&args),
        Some(Command::DeviceReader(args)) => run::device_reader(&args),
        Some(Command::FileReader(args)) => run::file_reader(args),
        Some(Command::AppendLine(args)) => append::append(&args),
        Some(Command::SelfTest(args)) => run::self_test(&args),
    }
}

impl AgentArgs {
    /// Reads the configuration again.
    fn reload(&self) -> Load {
        let Inputs { file, env, flags } = self.common.inputs(Some(&self.output));
        Box::new(move || Configuration::load(file.or_default().as_deref(), &env, &flags))
    }
}

/// What a configuration is read from.
struct Inputs {
    file: ConfigFile,
    env: Vec<(String, String)>,
    flags: Flags,
}

/// The file that the command line names.
struct ConfigFile(Option<PathBuf>);

impl ConfigFile {
    /// The named file, else the usual one where it is.
    fn or_default(&self) -> Option<PathBuf> {
        let default = PathBuf::from(USUAL_FILE);
        self.0.clone().or_else(|| default.exists().then_some(default))
    }
}

impl Common {
    fn load(&self, output: Option<&Output>) -> anyhow::Result<Configuration> {
        let Inputs { file, env, flags } = self.inputs(output);
        Ok(Configuration::load(file.or_default().as_deref(), &env, &flags)?)
    }

    fn inputs(&self, output: Option<&Output>) -> Inputs {
        let flags = Flags {
            interval: output.and_then(|output| output.interval.clone()),
            otlp_endpoint: output.and_then(|output| output.otlp.clone()),
            log: self.log.clone(),
            libraries: self.nvidia_library.iter().map(|path| ("nvidia", path.clone())).collect(),
            prometheus: output.and_then(|output| output.prometheus.clone()),
            sinks: output.map_or_else(Vec::new, |output| output.sink.clone()),
        };
        // A variable that is not Unicode is not one of ours.
        let env = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Inputs { file: ConfigFile(self.config.clone()), env, flags }
    }
}

/// Writes to standard output, and of what others have named only what is printable; a reader that
/// went away (`| head`) is not an error.
fn print(text: &str) -> anyhow::Result<()> {
    screen::write(&printable_lines(text)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    fn parsed(line: &str) -> Result<Cli, String> {
        let matches = Cli::command().try_get_matches_from(line.split(' '));
        let matches = matches.map_err(|error| error.to_string())?;
        match misplaced(&matches) {
            Some(error) => Err(error.to_string()),
            None => Ok(Cli::from_arg_matches(&matches).unwrap()),
        }
    }

    #[test]
    fn json_may_stand_before_or_behind_a_command() {
        for line in ["gpuwho --json doctor", "gpuwho doctor --json", "gpuwho --json events"] {
            let cli = parsed(line).unwrap();
            assert!(cli.command.is_some() && cli.who.is_json(), "{line}");
        }
        for line in ["gpuwho -o json", "gpuwho resume --json", "gpuwho agent --output json"] {
            assert!(parsed(line).unwrap().who.is_json(), "{line}");
        }
        for line in ["gpuwho doctor", "gpuwho -o text events"] {
            assert!(!parsed(line).unwrap().who.is_json(), "{line}");
        }
        for line in ["gpuwho health --brief -o json", "gpuwho receipt 7 --line --json"] {
            assert!(parsed(line).unwrap_err().contains("cannot be used with"), "{line}");
        }
    }

    #[test]
    fn what_people_type_first_works_or_is_answered_with_what_does() {
        for line in ["gpuwho -w", "gpuwho -w 5 -u alice -n serving", "gpuwho version"] {
            assert!(parsed(line).is_ok(), "{line}");
        }
        for word in ["watch", "ps"] {
            let error =
                in_words(Cli::command().try_get_matches_from(["gpuwho", word]).unwrap_err());
            let text = error.to_string();
            assert!(text.contains("`gpuwho` prints") && text.contains("gpuwho top"), "{text}");
        }
        let error = parsed("gpuwho events --since yesterday").unwrap_err();
        assert!(error.contains("like 10m or 2h"), "{error}");
        let error = parsed("gpuwho --watch abc").unwrap_err();
        assert!(error.contains("seconds from 1 to 3600"), "{error}");
    }

    /// Sentences of help: they end with a full stop before a space, or with a paragraph.
    fn sentences(command: &clap::Command) -> Vec<String> {
        let about = [command.get_about(), command.get_long_about(), command.get_after_help()];
        let of_args = command.get_arguments().flat_map(|arg| [arg.get_help(), arg.get_long_help()]);
        let texts = about.into_iter().chain(of_args).flatten().map(ToString::to_string);
        let own = texts.flat_map(|text| {
            let parts = text.split("\n\n").flat_map(|part| part.split(". "));
            parts.map(str::to_owned).collect::<Vec<_>>()
        });
        own.chain(command.get_subcommands().flat_map(sentences)).collect()
    }

    #[test]
    fn no_sentence_of_help_has_more_than_25_words() {
        for sentence in sentences(&Cli::command()) {
            // A list of names is none.
            let is_list = sentence.contains("\n  ") || sentence.starts_with("One of: ");
            assert!(is_list || sentence.split_whitespace().count() <= 25, "{sentence}");
        }
    }

    #[test]
    fn an_option_that_a_command_would_not_heed_is_refused() {
        let error = parsed("gpuwho --gpu 0 doctor").unwrap_err();
        assert!(error.contains("--gpu before `doctor` has no effect"), "{error}");
    }
}
