//! Names in a delegated part of the cgroup tree, on a host made of files.

use super::*;
use crate::attribute::fake::{FakeHost, opened};
use crate::attribute::names::{ContainerFacts, Provider};
use crate::attribute::owner::Owner;
use crate::attribute::ownership::Ownership;
use crate::attribute::{Evidence, Settings};
use gpuwho_model::ids::ProcKey;
use std::collections::BTreeMap;

const KEY: ProcKey = ProcKey { pid: 7, start_ticks: 100 };
const UID: &str = "aaaaaaaa-0000-4000-8000-000000000001";

fn id(digit: char) -> String {
    digit.to_string().repeat(64)
}

/// Places a process in a cgroup, with a user.
fn placed(host: &FakeHost, table: &Ownership, cgroup: &str, uid: u32) -> Arc<ProcessAttribution> {
    host.start(KEY, "python", &format!("0::{cgroup}\n"));
    host.write(KEY, "status", format!("Name:\t-\nTgid:\t7\nUid:\t{uid}\t0\t0\t0\n"));
    table.observe(Evidence::Opened(opened(KEY, 5, 1_000_000_000)));
    table.attribution(KEY).unwrap()
}

/// The attributes that identify the workload, on its points or its info series.
fn identity(set: &AttrSet) -> BTreeMap<&'static str, String> {
    let is_work = |name: &str| {
        ["k8s.", "container.", "gpuwho.claimed.", "gpuwho.node.", "systemd."]
            .iter()
            .any(|start| name.starts_with(start))
    };
    let all = set.iter().filter(|(key, _)| is_work(key.name));
    all.map(|(key, value)| (key.name, value.to_string())).collect()
}

fn pairs(pairs: &[(&'static str, &str)]) -> BTreeMap<&'static str, String> {
    pairs.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
}

fn nested(host: &FakeHost, nested: bool) -> Ownership {
    Ownership::with_settings(
        &host.paths,
        Settings { nested, ..Settings::default_settings(&host.paths) },
    )
}

#[test]
fn a_pod_or_container_named_in_a_users_slice_is_a_claim_with_any_configuration() {
    let (a, slice) = (id('a'), "/user.slice/user-1002.slice/user@1002.service");
    for believes in [false, true] {
        for (below, claims) in [
            (format!("kubepods/pod{UID}/{a}"), vec![("pod.uid", UID), ("container.id", &a)]),
            (format!("user.slice/docker-{a}.scope"), vec![("container.id", a.as_str())]),
            ("app.slice/ollama.service".into(), vec![("systemd.unit", "ollama.service")]),
        ] {
            let host = FakeHost::new();
            let table = nested(&host, believes);
            let owner = placed(&host, &table, &format!("{slice}/{below}"), 1002);
            let unit = [("systemd.unit", "user@1002.service")];
            assert_eq!(identity(&owner.attributes()), pairs(&unit), "{below}");
            let mut all = pairs(&unit);
            for (key, value) in owner.workload.claimed.each() {
                all.insert(key.name, value.to_owned());
            }
            assert_eq!(identity(&owner.details()), all, "{below}");
            let claimed = owner.workload.claimed.each();
            let claimed: Vec<_> = claimed
                .map(|(key, name)| (key.name.strip_prefix("gpuwho.claimed.").unwrap(), name))
                .collect();
            assert_eq!(claimed, claims, "{below}");
            assert_eq!(table.owner(owner.owner).unwrap().owner, Owner::User(1002), "{below}");
        }
    }
}

#[test]
fn a_pod_named_in_a_container_is_a_claim_unless_the_operator_allows_nested_pods() {
    let (node, inner) = (id('d'), id('a'));
    let path = format!("/docker/{node}/kubelet/kubepods/burstable/pod{UID}/{inner}");
    let host = FakeHost::new();
    let owner = placed(&host, &nested(&host, false), &path, 0);
    assert_eq!(identity(&owner.attributes()), pairs(&[("container.id", &node)]));
    let claims = [("gpuwho.claimed.pod.uid", UID), ("gpuwho.claimed.container.id", &inner)];
    let all = [claims.as_slice(), &[("container.id", node.as_str())]].concat();
    assert_eq!(identity(&owner.details()), pairs(&all));
    assert_eq!(Owner::of(&owner), Owner::Container(ContainerId::new(&node)));

    let host = FakeHost::new();
    let owner = placed(&host, &nested(&host, true), &path, 0);
    let pod = [
        ("k8s.pod.uid", UID),
        ("k8s.pod.qos_class", "burstable"),
        ("container.id", inner.as_str()),
    ];
    assert_eq!(identity(&owner.attributes()), pairs(&pod));
    let all = [pod.as_slice(), &[("gpuwho.node.container.id", node.as_str())]].concat();
    assert_eq!(
        identity(&owner.details()),
        pairs(&all),
        "the host's own container is reported, too"
    );
}

#[test]
fn a_container_that_a_service_names_counts_once_the_hosts_runtime_confirms_it() {
    let (host, a) = (FakeHost::new(), id('a'));
    let table = nested(&host, false);
    let unit = "/system.slice/train.service";
    let place = format!("{unit}/libpod-payload-{a}");
    let claimed = [("systemd.unit", "train.service"), ("gpuwho.claimed.container.id", &a)];
    assert_eq!(identity(&placed(&host, &table, &place, 0).details()), pairs(&claimed));

    let facts = |cgroup: &str| ContainerFacts {
        id: ContainerId::new(&a),
        name: Some(Arc::from("train")),
        image: None,
        runtime: "podman",
        pod: None,
        cgroup: Some(Arc::from(cgroup)),
        details: AttrSet::new(),
    };
    table.put_container(Provider::Engine, facts("/machine.slice/elsewhere"));
    assert_eq!(
        identity(&table.attribution(KEY).unwrap().details()),
        pairs(&claimed),
        "of another place"
    );
    table.put_container(Provider::Engine, facts(&place));
    let owner = table.attribution(KEY).unwrap();
    let known =
        [("systemd.unit", "train.service"), ("container.id", &a), ("container.name", "train")];
    assert_eq!(identity(&owner.attributes()), pairs(&known));
    assert_eq!(Owner::of(&owner), Owner::Service(Arc::from("train.service")));
}

#[test]
fn a_container_in_a_machine_and_its_units_are_claims_of_the_machine_s_root() {
    let (host, a) = (FakeHost::new(), id('a'));
    let table = nested(&host, true);
    let owner = placed(&host, &table, &format!("/lxc.payload.web01/x.service/docker/{a}"), 0);
    let claims =
        [("gpuwho.claimed.container.id", a.as_str()), ("gpuwho.claimed.systemd.unit", "x.service")];
    assert_eq!(identity(&owner.details()), pairs(&claims));
    assert_eq!(identity(&owner.attributes()), pairs(&[]));
    assert_eq!(Owner::of(&owner), Owner::Machine(Arc::from("web01")));
}

#[test]
fn a_flux_job_belongs_to_its_own_user_and_another_unit_of_that_name_does_not() {
    for (slice, below, uid, owner_id) in [
        (901, "imp-shell-0-f2xQ9.service", 54_321, 54_321),
        (901, "app.slice/imp-shell-0-f2xQ9.service/deeper", 54_321, 54_321),
        // Other units of the Flux account belong to the account.
        (901, "flux.service", 901, 901),
        (901, "flux.service/imp-shell-0-f2xQ9.service", 54_321, 901),
        (901, "imp-shellfish.service", 54_321, 901),
        // A user's own unit of that name, also with sudo or in a user namespace.
        (1002, "imp-shell-0-f2xQ9.service", 1002, 1002),
        (1002, "imp-shell-0-f2xQ9.service", 0, 1002),
        (1002, "imp-shell-0-f2xQ9.service", 165_537, 1002),
        (1002, "user-901.slice/user@901.service/imp-shell-0-f.service", 0, 1002),
        // An account named `flux` with the number of an ordinary user.
        (2000, "imp-shell-0-f2xQ9.service", 54_321, 54_321),
    ] {
        let host = FakeHost::new();
        std::fs::write(&host.paths.passwd, "flux:x:2000:2000::/:/bin/sh\n").unwrap();
        let table = nested(&host, false);
        let place = format!("/user.slice/user-{slice}.slice/user@{slice}.service/{below}");
        let owner = placed(&host, &table, &place, uid);
        let found = &table.owner(owner.owner).unwrap().owner;
        assert_eq!(*found, Owner::User(owner_id), "{place} of {uid}");
    }
}
