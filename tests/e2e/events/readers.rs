//! Who sees what of the last events.

use super::scene::Scene;
use super::{PCI, WITHIN};
use gpuwho_tests::attacker::{self, NOBODY};
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::Stage;
use gpuwho_tests::until::until;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn a_user_sees_what_happened_to_a_device_and_nothing_of_whom_it_struck() {
    let mut scene = Scene::new(or_skip!(Stage::new()), None, |_, _| {});
    fs::set_permissions(scene.stage.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    let pid = scene.worker.pid();
    let line = format!("NVRM: Xid (PCI:{PCI}): 31, pid={pid}, name=secret-name, Ch 00000008");
    scene.kmsg.write_line(&line).unwrap();
    let socket = scene.agent.as_ref().unwrap().socket().display().to_string();
    let asked = |uid: u32, ask: &str| {
        let request = format!("{{\"ask\":\"{ask}\"}}");
        let words = [uid.to_string(), socket.clone(), request];
        let words = words.each_ref().map(String::as_str);
        let child = attacker::command("claims-ask", &words).unwrap().spawn().unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    };
    let names = ["secret-name".to_owned(), scene.expected.pod.clone().unwrap()];
    let shown = |uid: u32| {
        let text =
            until(WITHIN, || Some(asked(uid, "events")).filter(|text| text.contains(":31,")));
        let text = text.unwrap_or_else(|| panic!("no event for {uid}: {}", asked(uid, "events")));
        names.each_ref().map(|name| text.contains(name.as_str()))
    };
    assert_eq!(shown(0), [true; 2]);
    assert_eq!(shown(NOBODY), [false; 2]);
    let reply: Value = serde_json::from_str(&asked(NOBODY, "events")).unwrap();
    let events = reply["events"]["events"].as_array().unwrap();
    let xid = events.iter().find(|event| event["code"] == 31).unwrap();
    assert!(xid["message"].is_null() && xid["affected"] == Value::Array(Vec::new()), "{xid:#}");
    assert!(xid["affected_others"].as_u64() >= Some(1), "{xid:#}");
}
