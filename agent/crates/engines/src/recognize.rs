//! Decides from program, title and arguments whether a process is an engine's server and on which
//! of its ports it serves its page. The agent sends no byte to any other port.

use super::ENGINES;
use super::table::Engine;

/// Arguments of a process that are looked at.
const MAX_ARGUMENTS: usize = 512;
/// The first arguments may name a program: `python3 /usr/local/bin/vllm serve`.
const PROGRAM_ARGUMENTS: usize = 3;

/// What a process runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CommandLine {
    /// The file it runs, without folders.
    pub program: String,
    /// Its name (`comm`), which it may have given itself.
    pub title: String,
    /// Its arguments, its own name first.
    pub arguments: Vec<String>,
}

impl CommandLine {
    /// Reads `/proc/PID/cmdline`. A title that a process has written over it is one argument.
    pub(super) fn new(program: &str, title: &str, cmdline: &[u8]) -> Self {
        let text = String::from_utf8_lossy(cmdline);
        let arguments = text.trim_end_matches('\0').split('\0').take(MAX_ARGUMENTS);
        Self {
            program: program.to_owned(),
            title: title.to_owned(),
            arguments: arguments.map(str::to_owned).collect(),
        }
    }

    /// The engine that this is a server of.
    pub(super) fn engine(&self) -> Option<&'static Engine> {
        ENGINES.iter().copied().find(|engine| self.is_of(engine))
    }

    fn is_of(&self, engine: &Engine) -> bool {
        let signs = &engine.signs;
        let first = self.arguments.iter().take(PROGRAM_ARGUMENTS);
        let mut programs = first.map(String::as_str).chain([self.program.as_str()]).map(file_name);
        let whole = || self.arguments.first().map(String::as_str);
        programs.any(|program| signs.programs.contains(&program))
            || signs.titles.iter().any(|title| {
                self.title.starts_with(title) || whole().is_some_and(|at| at.starts_with(title))
            })
            || self.modules().any(|module| signs.arguments.contains(&module))
    }

    /// The module that Python runs: `-m vllm.entrypoints.openai.api_server`.
    fn modules(&self) -> impl Iterator<Item = &str> {
        let pairs = self.arguments.iter().zip(self.arguments.iter().skip(1));
        pairs.filter(|(option, _)| *option == "-m").map(|(_, module)| module.as_str())
    }

    /// The ports on which the engine's page may be: the one it was given, else its usual ones.
    pub(super) fn ports(&self, engine: &Engine) -> Vec<u16> {
        let given = engine.signs.port_options.iter().find_map(|option| self.option(option));
        given.map_or_else(|| engine.signs.ports.to_vec(), |port| vec![port])
    }

    /// The port in the last value of an option: `--port 9000`, `--port=9000`, `--address :9400`.
    fn option(&self, name: &str) -> Option<u16> {
        let mut found = None;
        let mut arguments = self.arguments.iter().peekable();
        while let Some(argument) = arguments.next() {
            let value = match argument.strip_prefix(name) {
                Some("") => arguments.peek().map(|value| value.as_str()),
                Some(rest) => rest.strip_prefix('='),
                None => None,
            };
            let port = |value: &str| {
                let port = value.rsplit_once(':').map_or(value, |(_, port)| port);
                port.trim().parse().ok()
            };
            found = value.and_then(port).or(found);
        }
        found
    }
}

fn file_name(path: &str) -> &str {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    name.strip_suffix(" (deleted)").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(program: &str, title: &str, arguments: &[&str]) -> CommandLine {
        CommandLine::new(program, title, (arguments.join("\0") + "\0").as_bytes())
    }

    fn found(command: &CommandLine) -> Option<(&'static str, Vec<u16>)> {
        let engine = command.engine()?;
        Some((engine.name, command.ports(engine)))
    }

    #[test]
    fn servers_are_recognised_as_they_are_started() {
        for (program, title, arguments, wanted) in [
            (
                "python3.12",
                "vllm",
                &["/usr/bin/python3", "/usr/local/bin/vllm", "serve", "m"][..],
                ("vllm", 8000),
            ),
            ("python3.12", "VLLM::APIServer", &["VLLM::APIServer_0"], ("vllm", 8000)),
            (
                "python3.12",
                "python3",
                &["python3", "-m", "vllm.entrypoints.openai.api_server", "--port=9001"],
                ("vllm", 9001),
            ),
            (
                "python3",
                "python3",
                &["python3", "-m", "sglang.launch_server", "--port", "30001"],
                ("sglang", 30001),
            ),
            (
                "python3",
                "python3",
                &["python3", "-m", "dynamo.vllm", "--model", "m"],
                ("dynamo", 8081),
            ),
            (
                "python3",
                "trtllm-serve",
                &["/usr/bin/python3", "/usr/local/bin/trtllm-serve", "m", "--port", "8001"],
                ("tensorrt-llm", 8001),
            ),
            (
                "tritonserver",
                "tritonserver",
                &["tritonserver", "--http-port", "8000"],
                ("triton", 8002),
            ),
            (
                "tritonserver",
                "tritonserver",
                &["tritonserver", "--metrics-port=9002"],
                ("triton", 9002),
            ),
        ] {
            let found = found(&command(program, title, arguments));
            assert_eq!(found, Some((wanted.0, vec![wanted.1])), "{arguments:?}");
        }
    }

    #[test]
    fn dcgm_s_exporter_has_its_port_behind_an_address() {
        for (arguments, port) in [
            (&["--address", ":9401"][..], 9401),
            (&["-a", "0.0.0.0:9402"], 9402),
            (&["--address=[::]:9403"], 9403),
            (&["--address", "nonsense"], 9400),
            (&[], 9400),
        ] {
            let all = [&["dcgm-exporter"], arguments].concat();
            let exporter = command("dcgm-exporter", "dcgm-exporter", &all);
            assert_eq!(found(&exporter), Some(("dcgm-exporter", vec![port])), "{arguments:?}");
        }
    }

    #[test]
    fn other_programs_are_not_whatever_they_are_told_of() {
        for arguments in [
            &["python3", "train.py", "--project", "vllm"][..],
            &["torchrun", "--rdzv-endpoint", "host:8000", "finetune.py", "sglang"],
            &["python3", "-m", "torch.distributed.run", "vllm_train.py"],
            &["redis-server", "*:8000"],
            &[""],
        ] {
            assert_eq!(found(&command("python3.12", "python3", arguments)), None, "{arguments:?}");
        }
    }

    #[test]
    fn a_port_that_is_no_number_is_none() {
        let serve =
            |port| command("python3", "vllm", &["python3", "vllm", "serve", "--port", port]);
        assert_eq!(found(&serve("nonsense")), Some(("vllm", vec![8000])));
        assert_eq!(found(&serve("99999")), Some(("vllm", vec![8000])));
        let cut = command("python3", "vllm", &["python3", "vllm", "serve", "--port"]);
        assert_eq!(found(&cut), Some(("vllm", vec![8000])));
    }
}
