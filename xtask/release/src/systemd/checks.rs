//! What must hold on a host with the package, in the order of its life.

use super::guest::Guest;
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// The newest exposure that the unit may have, as `systemd-analyze security` counts it (0 to 10).
const EXPOSURE: f64 = 4.0;

/// How often the guest is asked before something is said not to come: emulated, each takes a second
/// and more.
const ASKED: usize = 60;

/// Looks at the unit; part of the admin's drop-in for the fake driver.
const DRIVER: &str = "mkdir -p /etc/systemd/system/gpuwho.service.d /opt/check/pids /opt/check/nodes \
    && touch /opt/check/nodes/nvidia{ctl,0,1,2,3,4,5,6,7} \
    && printf '[Service]\\nEnvironment=FAKE_NVML_SCENARIO=/opt/check/scenario.toml \
    FAKE_NVML_PIDS=/opt/check/pids FAKE_NVML_NODES=/opt/check/nodes\\n' \
    > /etc/systemd/system/gpuwho.service.d/driver.conf && systemctl daemon-reload";

/// The admin's configuration: the fake driver, and a node that every machine has.
const CONFIGURE: &str = "printf '[agent]\\ninterval = \"1s\"\\n[nvidia]\\n\
    library = \"/opt/check/libnvidia-ml.so.1\"\\n[devices]\\nnodes = [\"/dev/full\"]\\n' \
    > /etc/gpuwho/gpuwho.toml && echo OTEL_SERVICE_NAME=kept > /etc/gpuwho/environment";

/// Processes from before the agent that hold the node: of root without capabilities, and of a user.
const HOLDERS: &str = "for user in root nobody; do systemctl stop holder-$user 2>/dev/null; \
    systemd-run --quiet --unit holder-$user -p User=$user -p CapabilityBoundingSet= \
    bash -c 'exec 4</dev/full; exec sleep infinity' || exit 1; done";

/// What the agent says of itself and its devices.
const WHO: &str = "gpuwho --json";

/// One step and its name.
type Step = (&'static str, fn(&mut Guest) -> Result<String>);

const STEPS: &[Step] = &[
    ("the host", host),
    ("installed and started", install),
    ("the commands work", commands),
    ("the sandbox", sandbox),
    ("the admin's configuration is used", configure),
    ("without CAP_SYS_ADMIN", |guest| without(guest, "CAP_SYS_ADMIN")),
    ("without CAP_SYS_PTRACE", |guest| without(guest, "CAP_SYS_PTRACE")),
    ("without CAP_DAC_READ_SEARCH", |guest| without(guest, "CAP_DAC_READ_SEARCH")),
    ("without CAP_SYSLOG", |guest| without(guest, "CAP_SYSLOG")),
    ("started again when it is killed", killed),
    ("started again when it gives no sign of life", stuck),
    ("up after a reboot, and knows a missing device", reboot),
    ("upgraded, the configuration kept", upgrade),
    ("removed", remove),
    ("installed again", again),
    ("purged without a trace", purge),
    ("the RPM installed, upgraded and erased", rpm),
];

/// Takes every step; prints what each found.
pub(super) fn all(guest: &mut Guest) -> Result<()> {
    for (name, step) in STEPS {
        let found = step(guest).with_context(|| (*name).to_owned())?;
        println!("   {name}: {found}");
    }
    Ok(())
}

/// What the unit and its manager logged last; nothing of a guest that is gone.
pub(super) fn log(guest: &mut Guest) -> String {
    let line = "journalctl -u gpuwho -n 60 --no-pager -o short-monotonic; systemctl status gpuwho --no-pager";
    guest.attempt(line).map(|(_, text)| text).unwrap_or_default()
}

fn host(guest: &mut Guest) -> Result<String> {
    let found = guest.run(
        "echo $(cat /proc/1/comm) $(dpkg-query -W -f '${Version}' systemd), \
         Linux $(uname -r), $(stat -fc %T /sys/fs/cgroup), glibc $(dpkg-query -W -f '${Version}' libc6)",
    )?;
    ensure!(found.starts_with("systemd ") && found.contains("cgroup2fs"), "{found}");
    // What purging must restore.
    guest.run(&format!("{TRACES} > /opt/check/before"))?;
    Ok(found.trim().to_owned())
}

fn install(guest: &mut Guest) -> Result<String> {
    guest.run("DEBIAN_FRONTEND=noninteractive apt-get install -y /opt/check/gpuwho.deb")?;
    ensure!(guest.run("systemctl is-enabled gpuwho")?.trim() == "enabled", "not enabled");
    let up = is_up(guest)?;
    let score = "cat /proc/$(systemctl show gpuwho --value -p MainPID)/oom_score_adj; \
        stat -c '%U %a' /var/log/gpuwho";
    let score = guest.run(score)?;
    ensure!(score == "-500\nroot 750\n", "OOMScoreAdjust and LogsDirectory: {score}");
    Ok(up)
}

/// Active only after READY=1, since the unit is of the type `notify`; and it has sent WATCHDOG=1 since.
fn is_up(guest: &mut Guest) -> Result<String> {
    let state = until(guest, "systemctl is-active gpuwho", |text| text.trim() == "active")?;
    let sign = "systemctl show gpuwho --value -p WatchdogTimestampMonotonic";
    let begin = guest.run("systemctl show gpuwho --value -p ActiveEnterTimestampMonotonic")?;
    let begin: u64 = begin.trim().parse().context("a unit's time")?;
    until(guest, sign, |text| text.trim().parse().is_ok_and(|at: u64| at > begin))?;
    ensure!(guest.run("systemctl show gpuwho --value -p NRestarts")?.trim() == "0", "restarted");
    ensure!(guest.run("systemctl show gpuwho --value -p Slice")?.trim() == "gpuwho.slice", "slice");
    Ok(format!("{}, gives signs of life to the watchdog", state.trim()))
}

fn commands(guest: &mut Guest) -> Result<String> {
    guest.run("gpuwho --help")?;
    guest.run("gpuwho doctor")?;
    let (code, text) = guest.attempt("gpuwho health")?;
    ensure!(code == 3 && text.contains("no device was judged"), "health: {code} {text}");
    let user = "setpriv --reuid=65534 --regid=65534 --clear-groups gpuwho";
    let (code, text) = guest.attempt(user)?;
    ensure!(code == 3 && text.contains("no accelerator"), "as a user: {code} {text}");
    let program = "bpftool prog list | grep -c opened";
    Ok(format!(
        "{}, BPF programs for opens: {}",
        guest.run("gpuwho --version")?.trim(),
        guest.run(program)?.trim()
    ))
}

fn sandbox(guest: &mut Guest) -> Result<String> {
    let (_, text) = guest.attempt("systemd-analyze security gpuwho.service --no-pager")?;
    let (line, level) = exposure(&text).context("systemd-analyze says no exposure")?;
    ensure!(level <= EXPOSURE, "{line}, more than {EXPOSURE}");
    Ok(line.to_owned())
}

/// The line of `systemd-analyze security` with the sum, and the number in it.
fn exposure(text: &str) -> Option<(&str, f64)> {
    let line = text.lines().find(|line| line.contains("Overall exposure level"))?;
    let line = line.trim_matches(['→', ' ']);
    let (_, rest) = line.rsplit_once(": ")?;
    Some((line, rest.split(' ').next()?.parse().ok()?))
}

fn configure(guest: &mut Guest) -> Result<String> {
    for line in [DRIVER, CONFIGURE, HOLDERS, "systemctl restart gpuwho"] {
        guest.run(line)?;
    }
    let who = who_until(guest, "eight devices and both holders", |who| {
        devices(who) == 8 && is_held_by(who, "root") && is_held_by(who, "nobody")
    })?;
    ensure!(
        state(&who, "device_users") == "ready",
        "device_users: {}",
        state(&who, "device_users")
    );
    ensure!(state(&who, "kmsg") == "ready", "kmsg: {}", state(&who, "kmsg"));
    ensure!(!guest.run(LOG)?.contains("capability is missing"), "the log misses a capability");
    Ok("8 devices by the fake driver, holders of root and of a user".to_owned())
}

/// The unit's log since its last start.
const LOG: &str = "journalctl --no-pager -o cat _SYSTEMD_INVOCATION_ID=$(systemctl show gpuwho --value -p InvocationID)";

/// What the table of agent/docs/threat-model.md says goes without a capability, goes, and no more.
fn without(guest: &mut Guest, name: &str) -> Result<String> {
    let unit = "systemctl show gpuwho --value -p CapabilityBoundingSet";
    let unit = guest.run(unit)?;
    let left = all_but(&unit, name)
        .with_context(|| format!("the unit has other capabilities: {}", unit.trim()))?;
    let file = "/etc/systemd/system/gpuwho.service.d/without.conf";
    guest.run(&format!(
        "printf '[Service]\\nCapabilityBoundingSet=\\nCapabilityBoundingSet={left}\\n' > {file} \
         && systemctl daemon-reload && systemctl restart gpuwho"
    ))?;
    let who = who_until(guest, "devices and root's holder", |who| {
        devices(who) == 8 && is_held_by(who, "root")
    })?;
    let found = (state(&who, "device_users"), state(&who, "kmsg"), is_held_by(&who, "nobody"));
    let expected = match name {
        "CAP_SYS_ADMIN" => ("degraded", "ready", true),
        "CAP_SYSLOG" if takes_sys_admin_for_syslog(guest)? => ("ready", "ready", true),
        "CAP_SYSLOG" => ("ready", "degraded", true),
        _ => ("ready", "ready", false),
    };
    ensure!(
        (found.0.as_str(), found.1.as_str(), found.2) == expected,
        "{found:?}, not {expected:?}"
    );
    let log = guest.run(LOG)?;
    ensure!(misses_only(&log, name), "the log does not say that {name} alone is missing: {log}");
    guest.run(&format!("rm {file} && systemctl daemon-reload && systemctl restart gpuwho"))?;
    let (users, kmsg, user) = found;
    Ok(format!("device_users {users}, kmsg {kmsg}, a user's holder from before seen: {user}"))
}

/// The unit's four capabilities, as `systemctl show` names them, without one.
fn all_but(unit: &str, name: &str) -> Option<String> {
    let all = unit.trim().to_uppercase();
    let left: Vec<_> = all.split_whitespace().filter(|held| *held != name).collect();
    (left.len() == 3).then(|| left.join(" "))
}

/// Whether a log says once that a capability is missing, and that it is this one.
fn misses_only(log: &str, name: &str) -> bool {
    let mut lines = log.lines().filter(|line| line.contains("capability is missing"));
    lines.next().is_some_and(|line| line.contains(name)) && lines.next().is_none()
}

/// Whether this kernel shows its log to who has CAP_SYS_ADMIN alone, as 6.1 does and 6.12 does not
/// (`check_syslog_permissions`).
fn takes_sys_admin_for_syslog(guest: &mut Guest) -> Result<bool> {
    let line = "setpriv --bounding-set=-syslog --inh-caps=-syslog sh -c ': </dev/kmsg'";
    Ok(guest.attempt(line)?.0 == 0)
}

fn killed(guest: &mut Guest) -> Result<String> {
    guest.run("systemctl kill --signal=KILL --kill-who=main gpuwho")?;
    let count = "systemctl show gpuwho --value -p NRestarts";
    let count = until(guest, count, |text| text.trim() == "1")?;
    who_until(guest, "eight devices", |who| devices(who) == 8)?;
    Ok(format!("{} restart", count.trim()))
}

/// The agent is told of an hour, and systemd waits for ten seconds: as if the agent were stuck.
fn stuck(guest: &mut Guest) -> Result<String> {
    let file = "/etc/systemd/system/gpuwho.service.d/stuck.conf";
    guest.run(&format!(
        "printf '[Service]\\nWatchdogSec=10s\\nExecStart=\\n\
         ExecStart=/usr/bin/env WATCHDOG_USEC=3600000000 /usr/bin/gpuwho agent\\n' > {file} \
         && systemctl daemon-reload && systemctl restart gpuwho"
    ))?;
    let said = "journalctl -u gpuwho --no-pager -o cat | grep -m1 'Watchdog timeout'";
    let said = until(guest, said, |text| !text.is_empty())?;
    let count = "systemctl show gpuwho --value -p NRestarts";
    let count = until(guest, count, |text| text.trim().parse().is_ok_and(|count: u32| count > 0))?;
    guest.run(&format!("rm {file} && systemctl daemon-reload && systemctl restart gpuwho"))?;
    who_until(guest, "eight devices", |who| devices(who) == 8)?;
    Ok(format!("{}: {} restart", said.trim(), count.trim()))
}

fn reboot(guest: &mut Guest) -> Result<String> {
    let known = guest.run("cat /var/lib/gpuwho/devices.json")?;
    ensure!(known.matches("GPU-4f6b1c1e").count() >= 8, "{known}");
    guest.run("sed -i 's/^count = 8/count = 7/' /opt/check/scenario.toml && sync")?;
    guest.reboot()?;
    let up = is_up(guest)?;
    let eighth = "GPU-4f6b1c1e-8f0a-4c55-9d10-000000000007";
    who_until(guest, "seven devices, and the eighth lost", |who| {
        devices(who) >= 7 && is_lost(who, eighth)
    })?;
    Ok(format!("{up}; the eighth is lost"))
}

fn upgrade(guest: &mut Guest) -> Result<String> {
    let before = guest.run("cat /etc/gpuwho/gpuwho.toml /etc/gpuwho/environment")?;
    let pid = "systemctl show gpuwho --value -p MainPID";
    let old = guest.run(pid)?;
    guest.run(
        "DEBIAN_FRONTEND=noninteractive apt-get install -y -o Dpkg::Options::=--force-confdef \
        -o Dpkg::Options::=--force-confold /opt/check/newer.deb",
    )?;
    let version = guest.run("dpkg-query -W -f '${Version}' gpuwho")?;
    ensure!(version.contains("+newer"), "{version}");
    let up = is_up(guest)?;
    ensure!(guest.run(pid)? != old, "the old program still runs");
    let after = guest.run("cat /etc/gpuwho/gpuwho.toml /etc/gpuwho/environment")?;
    ensure!(before == after, "the configuration was changed: {after}");
    guest.run("test -f /etc/gpuwho/gpuwho.toml.dpkg-dist")?;
    who_until(guest, "its devices", |who| devices(who) >= 7)?;
    Ok(format!("{} is {up}", version.trim()))
}

fn remove(guest: &mut Guest) -> Result<String> {
    guest.run("apt-get remove -y gpuwho")?;
    let left = guest.run(
        "systemctl is-active gpuwho; pgrep -l gpuwho; bpftool prog list | grep -E 'opened|nccl'; \
        ls -d /usr/bin/gpuwho /lib/systemd/system/gpuwho.service 2>/dev/null; true",
    )?;
    ensure!(left.trim() == "inactive", "left after removing: {left}");
    guest.run("test -f /etc/gpuwho/gpuwho.toml -a -f /var/lib/gpuwho/devices.json")?;
    Ok("no process, no BPF program; configuration and state are kept".to_owned())
}

fn again(guest: &mut Guest) -> Result<String> {
    guest.run(
        "DEBIAN_FRONTEND=noninteractive apt-get install -y -o Dpkg::Options::=--force-confold \
        /opt/check/newer.deb",
    )?;
    let up = is_up(guest)?;
    who_until(guest, "its devices", |who| devices(who) >= 7)?;
    Ok(format!("{up} with the kept configuration"))
}

/// Everything that an installation may leave: files of its name, users, groups, units, BPF programs, pins.
const TRACES: &str = "(find / -xdev -iname '*gpuwho*' -not -path '/proc/*' -not -path '/opt/check/*' \
    -not -path '/var/lib/dpkg/info/gpuwho.list'; find /run /sys/fs/bpf /sys/fs/cgroup \
    -iname '*gpuwho*'; grep -i gpuwho /etc/hostname /etc/passwd /etc/group /var/lib/dpkg/status; bpftool prog list | grep -E 'name (opened|nccl)'; \
    systemctl list-units --all --plain --no-legend 'gpuwho*'; systemctl list-unit-files --no-legend 'gpuwho*') 2>/dev/null | sort";

fn purge(guest: &mut Guest) -> Result<String> {
    // What the admin made beside the package is the admin's to remove.
    guest.run("rm -r /etc/systemd/system/gpuwho.service.d && systemctl daemon-reload")?;
    guest.run("apt-get purge -y gpuwho")?;
    let left = guest.run(&format!(
        "{TRACES} > /opt/check/after; diff /opt/check/before /opt/check/after; true"
    ))?;
    ensure!(left.trim().is_empty(), "left after purging:\n{left}");
    Ok("no file, user, unit, BPF program or cgroup".to_owned())
}

/// Debian's rpm runs the scripts as every other does. It knows no installed package, so nothing is asked of them.
const RPM: &str = "rpm --nodeps --force-debian";

/// The presets say whether it is enabled, and nothing starts it; an upgrade restarts it; erasing leaves what the
/// admin wrote.
fn rpm(guest: &mut Guest) -> Result<String> {
    let pid = "systemctl show gpuwho --value -p MainPID";
    guest.run(&format!("{RPM} -i /opt/check/gpuwho.rpm"))?;
    // Debian has no presets, which means that everything is enabled.
    let state = guest.run("systemctl is-enabled gpuwho; systemctl is-active gpuwho; true")?;
    ensure!(state == "enabled\ninactive\n", "after installing: {state}");
    let admin = "echo '# mine' >> /etc/gpuwho/gpuwho.toml; echo A=1 > /etc/gpuwho/environment; \
        systemctl start gpuwho && touch /var/log/gpuwho/points.jsonl";
    guest.run(admin)?;
    let up = is_up(guest)?;
    let old = guest.run(pid)?;
    guest.run(&format!("{RPM} -U /opt/check/newer.rpm"))?;
    is_up(guest)?;
    ensure!(guest.run(pid)? != old, "the old program still runs after the upgrade");
    guest.run("grep -q '# mine' /etc/gpuwho/gpuwho.toml && test -d /var/lib/gpuwho")?;
    let version = guest.run("rpm -q gpuwho")?;
    ensure!(version.lines().count() == 1 && version.contains(".1-"), "after upgrading: {version}");
    guest.run(&format!("{RPM} -e gpuwho"))?;
    let left = guest.run(&format!("{TRACES} | diff /opt/check/before - | grep '^[<>]'; true"))?;
    let kept = "> /etc/gpuwho\n> /etc/gpuwho/gpuwho.toml.rpmsave\n";
    ensure!(left == kept, "left after erasing:\n{left}");
    guest.run("test -f /etc/gpuwho/environment && rm -r /etc/gpuwho")?;
    Ok(format!("{up}; {} restarted it, erasing left what the admin wrote", version.trim()))
}

/// What the agent says once it says what is wanted.
fn who_until(guest: &mut Guest, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
    let text =
        until(guest, WHO, |text| serde_json::from_str(text).is_ok_and(|who: Value| is_so(&who)));
    Ok(serde_json::from_str(&text.with_context(|| what.to_owned())?)?)
}

/// Runs a line until its output is as it should be.
fn until(guest: &mut Guest, line: &str, is_so: impl Fn(&str) -> bool) -> Result<String> {
    let mut last = String::new();
    for _ in 0..ASKED {
        last = guest.attempt(line)?.1;
        if is_so(&last) {
            return Ok(last);
        }
        guest.run("sleep 1")?;
    }
    let log = guest.attempt("journalctl -u gpuwho -n 20 --no-pager -o cat")?.1;
    bail!("`{line}` still says {last}\n{log}")
}

fn devices(who: &Value) -> usize {
    who["devices"].as_array().map_or(0, Vec::len)
}

/// Whether a device is shown as gone from its driver.
fn is_lost(who: &Value, uuid: &str) -> bool {
    let mut devices = who["devices"].as_array().into_iter().flatten();
    devices.any(|device| {
        device["uuid"] == uuid && device["health"].to_string().contains("driver_lost")
    })
}

/// A source's state.
fn state(who: &Value, name: &str) -> String {
    let sources = who["sources"].as_array().into_iter().flatten();
    let source = sources.into_iter().find(|source| source["name"] == name);
    source.and_then(|source| source["state"].as_str()).unwrap_or("none").to_owned()
}

/// Whether a user's process is among those that hold a device.
fn is_held_by(who: &Value, user: &str) -> bool {
    let mut holders = who["holders"].as_array().into_iter().flatten();
    holders.any(|holder| holder.to_string().contains(&format!("holder-{user}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_exposure_is_the_number_of_its_line() {
        let text = "✗ PrivateNetwork=  Service has access  0.5\n\n\
            → Overall exposure level for gpuwho.service: 3.8 OK :-)\n";
        let line = "Overall exposure level for gpuwho.service: 3.8 OK :-)";
        assert_eq!(exposure(text), Some((line, 3.8)));
        assert_eq!(exposure("Overall exposure level for x.service: OK"), None);
        assert_eq!(exposure("Unit x.service not found."), None);
    }

    #[test]
    fn one_of_exactly_four_capabilities_is_taken_away() {
        let unit = "cap_dac_read_search cap_sys_ptrace cap_sys_admin cap_syslog\n";
        let left = "CAP_DAC_READ_SEARCH CAP_SYS_PTRACE CAP_SYSLOG";
        assert_eq!(all_but(unit, "CAP_SYS_ADMIN").as_deref(), Some(left));
        assert_eq!(all_but(unit, "CAP_BPF"), None);
        assert_eq!(all_but(&format!("{unit} cap_bpf"), "CAP_SYSLOG"), None);
    }

    #[test]
    fn a_log_misses_one_capability_once() {
        let line = "WARN a capability is missing name=\"CAP_SYSLOG\"\n";
        assert!(misses_only(&format!("INFO starting\n{line}"), "CAP_SYSLOG"));
        assert!(!misses_only(line, "CAP_SYS_ADMIN"));
        assert!(!misses_only(&line.repeat(2), "CAP_SYSLOG"));
        assert!(!misses_only("", "CAP_SYSLOG"));
    }

    #[test]
    fn devices_states_and_holders_are_read_from_the_answer() {
        let who = json!({
            "devices": [{ "uuid": "a", "health": [{ "condition": "driver_lost" }] }, { "uuid": "b" }],
            "sources": [{ "name": "kmsg", "state": "degraded" }, { "name": "nvidia" }],
            "holders": [{ "owner": { "unit": "holder-root.service" } }],
        });
        assert_eq!(devices(&who), 2);
        assert_eq!(["a", "b"].map(|uuid| is_lost(&who, uuid)), [true, false]);
        let states = ["kmsg", "nvidia", "slurm"].map(|name| state(&who, name));
        assert_eq!(states, ["degraded", "none", "none"]);
        assert_eq!(["root", "nobody"].map(|user| is_held_by(&who, user)), [true, false]);
        assert_eq!((devices(&json!(null)), is_held_by(&json!([]), "root")), (0, false));
    }
}
