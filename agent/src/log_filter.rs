//! Filters of the log in the names that operators know: those of the modules of one program, `gpuwho::export`,
//! whatever crate a module is in.

/// Modules by the names of filters, and the crates and modules that have them now.
const MODULES: &[(&str, &str)] = &[
    ("gpuwho::collect::device", "gpuwho_devices"),
    ("gpuwho::collect::kernel", "gpuwho_bpf"),
    ("gpuwho::collect::nccl", "gpuwho_nccl"),
    ("gpuwho::collect::engine", "gpuwho_engines"),
    ("gpuwho::collect", "gpuwho_collect"),
    ("gpuwho::export::otlp", "gpuwho_export::delivery"),
    ("gpuwho::export", "gpuwho_export"),
    ("gpuwho::telemetry", "gpuwho_export::telemetry"),
    ("gpuwho::sys", "gpuwho_sys"),
    ("gpuwho::attribute", "gpuwho_owners::attribute"),
    ("gpuwho::communicators", "gpuwho_owners::communicators"),
    ("gpuwho::host", "gpuwho_owners::host"),
    ("gpuwho::inventory", "gpuwho_owners::inventory"),
    ("gpuwho::local", "gpuwho_owners::local"),
    ("gpuwho::tenant_files", "gpuwho_owners::tenant_files"),
    ("gpuwho::accounting", "gpuwho_pipeline::accounting"),
    ("gpuwho::cost", "gpuwho_pipeline::cost"),
    ("gpuwho::event", "gpuwho_pipeline::event"),
    ("gpuwho::health", "gpuwho_pipeline::health"),
    ("gpuwho::series", "gpuwho_pipeline::series"),
    ("gpuwho::catalog", "gpuwho_model::catalog"),
    ("gpuwho::config", "gpuwho_model::config"),
    ("gpuwho::heartbeat", "gpuwho_model::heartbeat"),
    ("gpuwho::poller", "gpuwho_model::poller"),
    ("gpuwho::state_file", "gpuwho_model::state_file"),
];

/// The filter with a directive for each crate that a directive of it means. `gpuwho` alone means all crates
/// as it is: their names begin with it.
pub fn of_crates(filter: &str) -> String {
    let parts = filter.split(',').flat_map(|part| {
        let part = part.trim();
        let end = part.find(['=', '[']).unwrap_or(part.len());
        let (target, rest) = part.split_at(end);
        let meant = meant(target).into_iter().map(move |target| format!("{target}{rest}"));
        std::iter::once(part.to_owned()).chain(meant)
    });
    parts.collect::<Vec<_>>().join(",")
}

/// The crates and modules of a target that names a module.
fn meant(target: &str) -> Vec<String> {
    let is_below = |outer: &str, inner: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    if !target.starts_with("gpuwho::") {
        return Vec::new();
    }
    let around = MODULES.iter().filter(|(module, _)| is_below(target, module));
    let mut meant: Vec<String> = around.map(|(_, now)| (*now).to_owned()).collect();
    if let (true, Some((module, now))) =
        (meant.is_empty(), MODULES.iter().find(|(module, _)| is_below(module, target)))
    {
        let rest = target.strip_prefix(module).unwrap_or_default();
        meant.push(format!("{now}{rest}"));
    }
    meant
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_known_by_its_name_whatever_crate_it_is_in() {
        for (filter, expected) in [
            ("info", "info"),
            ("gpuwho=debug", "gpuwho=debug"),
            (
                "info, gpuwho::export=debug",
                "info,gpuwho::export=debug,gpuwho_export::delivery=debug,gpuwho_export=debug",
            ),
            (
                "gpuwho::export::otlp=trace",
                "gpuwho::export::otlp=trace,gpuwho_export::delivery=trace",
            ),
            (
                "gpuwho::collect::device::nvidia[read]=debug",
                "gpuwho::collect::device::nvidia[read]=debug,gpuwho_devices::nvidia[read]=debug",
            ),
            ("gpuwho::agent=debug", "gpuwho::agent=debug"),
            ("hyper=warn", "hyper=warn"),
        ] {
            assert_eq!(of_crates(filter), expected, "{filter}");
        }
        let all = of_crates("gpuwho::collect=debug");
        for part in ["gpuwho_collect=debug", "gpuwho_devices=debug", "gpuwho_nccl=debug"] {
            assert!(all.split(',').any(|found| found == part), "{part} in {all}");
        }
    }
}
