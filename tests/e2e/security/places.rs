//! A tenant who is first in a folder where everybody may make files, and leads the agent's into root's.

use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::attacker;
use gpuwho_tests::until::until;
use rustix::process::geteuid;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Of an agent that writes, and of one that refuses to start, on a machine under load.
const WITHIN: Duration = Duration::from_secs(10);

/// A folder where everybody may make files, and one of root's with a file.
struct Scene {
    _folder: TempDir,
    shared: PathBuf,
    roots: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let (shared, roots) = (folder.path().join("shared"), folder.path().join("roots"));
        for (path, mode) in [(folder.path(), 0o755), (&*shared, 0o1777), (&*roots, 0o700)] {
            fs::create_dir_all(path).unwrap();
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        fs::write(roots.join("file"), "root's\n").unwrap();
        Self { _folder: folder, shared, roots }
    }

    /// The tenant puts a link to something of root's there, or a folder of his own; where, and all his arguments.
    fn put(&self, place: &str, target: Option<&str>) -> (String, Vec<String>) {
        let path = self.shared.join(place).display().to_string();
        let target = target.map(|target| self.roots.join(target).display().to_string());
        let arguments: Vec<_> = [Some(path.clone()), target].into_iter().flatten().collect();
        let words: Vec<_> = arguments.iter().map(String::as_str).collect();
        assert!(attacker::command("place", &words).unwrap().status().unwrap().success());
        (path, arguments)
    }

    /// An agent with its files in the shared folder, and its points in this file.
    fn spawn(&self, points: &str) -> Agent {
        let config = Config {
            interval: Some("200ms".to_owned()),
            file: Some(self.shared.join(points)),
            more: "[nvidia]\nenabled = false\n".to_owned(),
            ..Config::default()
        };
        Agent::spawn(&self.shared, &config, None).unwrap()
    }

    /// What root has there.
    fn content(&self) -> Vec<(PathBuf, usize)> {
        let files = fs::read_dir(&self.roots).unwrap().map(|entry| entry.unwrap().path());
        let length = |path: &Path| fs::read(path).map_or(0, |content| content.len());
        files.map(|path| (path.clone(), length(&path))).collect()
    }
}

#[test]
fn what_a_tenant_puts_in_the_place_of_the_agents_files_is_named_and_nothing_is_written_there() {
    if !geteuid().is_root() {
        gpuwho_tests::skip!("root, beside whom somebody else makes files");
    }
    for (place, target) in [("run", Some("")), ("run", None), ("state", Some("")), ("state", None)]
    {
        let scene = Scene::new();
        let (path, arguments) = scene.put(place, target);
        let before = scene.content();
        let mut agent = scene.spawn("points.jsonl");
        let ended = agent.wait(WITHIN);
        let log = agent.log().join("\n");
        assert!(ended.is_some_and(|ended| !ended.success()), "{arguments:?}: {ended:?} {log}");
        assert!(log.contains("65534") && log.contains(&path), "{arguments:?}: {log}");
        assert_eq!(scene.content(), before, "{arguments:?}: {log}");
    }
    // Where the points go, which the agent goes on without.
    for (place, target, points) in
        [("points.jsonl", "file", "points.jsonl"), ("via", "", "via/points.jsonl")]
    {
        let scene = Scene::new();
        let (_, arguments) = scene.put(place, Some(target));
        let before = scene.content();
        let agent = scene.spawn(points);
        let is_named = |who: &Value| {
            let mut sources = who["sources"].as_array()?.iter();
            let sink = sources.find(|source| source["name"] == "sink:file")?;
            let has_user = sink["reason"].as_str()?.contains("belongs to user 65534");
            (sink["state"] == "degraded" && has_user).then_some(())
        };
        let what = format!("{arguments:?} named");
        agent.wait_for(&what, WITHIN, is_named).unwrap();
        assert_eq!(scene.content(), before, "{arguments:?}");
    }
    // Root's own links lead where they should.
    let scene = Scene::new();
    for name in ["run", "state"] {
        fs::create_dir(scene.roots.join(name)).unwrap();
        symlink(scene.roots.join(name), scene.shared.join(name)).unwrap();
    }
    symlink(scene.roots.join("file"), scene.shared.join("points.jsonl")).unwrap();
    let agent = scene.spawn("points.jsonl");
    let length = || fs::read(scene.roots.join("file")).unwrap().len();
    let has_written = until(WITHIN, || (length() > 100 && agent.who().is_ok()).then_some(()));
    assert!(has_written.is_some(), "{:#?}", agent.log());
}
