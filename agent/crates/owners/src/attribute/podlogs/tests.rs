use super::*;
use std::fs;

const UID: &str = "aaaaaaaa-0000-4000-8000-000000000001";

fn named(namespace: &str, name: &str) -> PodName {
    PodName { namespace: Arc::from(namespace), name: Arc::from(name) }
}

#[test]
fn names_are_split_at_the_first_and_the_last_underscore() {
    let parsed = |text: &str| {
        parse_name(OsStr::new(text)).map(|(uid, pod)| {
            (pod.namespace.to_string(), pod.name.to_string(), uid.as_str().to_owned())
        })
    };
    let all = |a: &str, b: &str, c: &str| Some((a.to_owned(), b.to_owned(), c.to_owned()));
    assert_eq!(parsed(&format!("ml_train-0_{UID}")), all("ml", "train-0", UID));
    assert_eq!(
        parsed("kube-system_etcd.node-1_0123456789abcdef0123456789abcdef"),
        all("kube-system", "etcd.node-1", "0123456789abcdef0123456789abcdef")
    );
    for wrong in ["", "_", "__", "a_b", "a__c", "_b_c", "a_b_", "a_b_c_d", "A_b_c", "a_b_c/d"] {
        assert_eq!(parsed(wrong), None, "{wrong}");
    }
}

#[test]
fn a_pod_that_appears_and_disappears_is_followed_without_listing() {
    let dir = tempfile::tempdir().unwrap();
    let logs = PodLogs::new(dir.path());
    let uid = PodUid::new(UID);
    assert_eq!(logs.pod(&uid), None);

    let pod = dir.path().join(format!("ml_train-0_{UID}"));
    fs::create_dir(&pod).unwrap();
    assert_eq!(logs.pod(&uid), Some(named("ml", "train-0")));

    fs::remove_dir(&pod).unwrap();
    logs.poll();
    assert_eq!(logs.index.lock().pods.len(), 0);
}

#[test]
fn a_directory_that_appears_later_or_is_replaced_is_watched() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("pods");
    let logs = PodLogs::new(&dir);
    let uid = PodUid::new(UID);
    assert_eq!(logs.pod(&uid), None);

    fs::create_dir_all(dir.join(format!("ml_one_{UID}"))).unwrap();
    logs.poll();
    assert_eq!(logs.pod(&uid), Some(named("ml", "one")));

    fs::rename(&dir, root.path().join("old")).unwrap();
    fs::create_dir_all(dir.join(format!("ml_two_{UID}"))).unwrap();
    logs.poll();
    logs.poll();
    assert_eq!(logs.pod(&uid), Some(named("ml", "two")));
}

#[test]
fn a_container_is_named_only_if_the_answer_is_unique() {
    let dir = tempfile::tempdir().unwrap();
    let pod = dir.path().join(format!("ml_train-0_{UID}"));
    fs::create_dir_all(pod.join("trainer")).unwrap();
    fs::write(pod.join("note"), "").unwrap();
    let logs = PodLogs::new(dir.path());
    let (uid, first, second) = (PodUid::new(UID), ContainerId::new("a"), ContainerId::new("b"));

    assert_eq!(logs.container(&uid, &first).as_deref(), Some("trainer"));
    fs::create_dir(pod.join("sidecar")).unwrap();
    assert_eq!(logs.container(&uid, &second), None);
    assert_eq!(logs.container(&uid, &first).as_deref(), Some("trainer"));
}
