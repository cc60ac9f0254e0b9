use super::super::fake::Node;
use super::*;
use crate::attribute::ProcessAttribution;
use crate::local::fake::Server;
use gpuwho_model::ids::ProcKey;
use std::sync::{Arc, Mutex};

/// In the form of Docker's API documents, only with the fields that are read; not recorded.
const INSPECT: &str = include_str!("../engine_inspect.json");
const ID: &str = "0000000000000000000000000000000000000000000000000000000000000abc";

type Answers = Arc<Mutex<HashMap<String, (u16, String)>>>;

fn engine(answers: &Answers, socket: &std::path::Path) -> Server {
    let answers = Arc::clone(answers);
    Server::http(socket, move |path| {
        let answers = answers.lock().unwrap();
        let (status, body) = answers.get(path).cloned().unwrap_or((404, String::new()));
        Some((status, body.into_bytes()))
    })
}

fn inspect(pid: u32) -> String {
    INSPECT.replace("\"Pid\": 4321", &format!("\"Pid\": {pid}"))
}

fn path(id: &str) -> String {
    format!("/containers/{id}/json")
}

fn answers(container: String) -> Answers {
    let version = (200, "{\"Version\":\"20.10.24\",\"ApiVersion\":\"1.41\"}".to_owned());
    let all = [("/version".to_owned(), version), (path(ID), (200, container))];
    Arc::new(Mutex::new(all.into()))
}

fn place() -> String {
    format!("/system.slice/docker-{ID}.scope")
}

/// The container's first process is 4321, as in the answer.
fn start(answers: &Answers) -> (Node, Server, ProcKey) {
    let mut node = Node::new(&[], Some("docker.sock"));
    let server = engine(answers, &node.sockets[0]);
    node.providers.start().unwrap();
    let process = node.holder(4321, &place());
    (node, server, process)
}

fn name(owner: &ProcessAttribution) -> Option<&str> {
    owner.workload.facts.as_ref().and_then(|facts| facts.name.as_deref())
}

#[test]
fn a_container_has_its_name_image_and_compose_service() {
    let (node, _server, process) = start(&answers(inspect(4321)));
    let owner = node.wait_for_owner(process, |owner| owner.workload.facts.is_some());
    let mut details = AttrSet::new();
    details.set(&attr::COMPOSE_PROJECT, "chat");
    details.set(&attr::COMPOSE_SERVICE, "llm");
    let expected = ContainerFacts {
        id: ContainerId::new(ID),
        name: Some(Arc::from("chat-llm-1")),
        image: Some(Arc::from("vllm/vllm-openai:v0.11.0")),
        runtime: "docker",
        pod: None,
        cgroup: Some(Arc::from(place())),
        details,
    };
    assert_eq!(owner.workload.facts.as_deref(), Some(&expected));
    let report = node.wait_for_report("docker", |report| report.state == SourceState::Ready);
    assert!(report.reason.starts_with("20.10.24 at "), "{}", report.reason);
}

#[test]
fn processes_further_down_in_the_container_belong_to_it_too() {
    let answers = answers(inspect(4321));
    let mut node = Node::new(&[], Some("docker.sock"));
    let _server = engine(&answers, &node.sockets[0]);
    let init = node.holder(4321, &format!("{}/init.scope", place()));
    let other = node.holder(4322, &format!("{}/system.slice/job.service", place()));
    node.providers.start().unwrap();
    for process in [init, other] {
        let owner = node.wait_for_owner(process, |owner| owner.workload.facts.is_some());
        assert_eq!(name(&owner), Some("chat-llm-1"));
    }
}

#[test]
fn a_directory_named_like_the_container_elsewhere_gets_no_name() {
    let answers = answers(inspect(4321));
    let mut node = Node::new(&[], Some("docker.sock"));
    let _server = engine(&answers, &node.sockets[0]);
    let true_one = node.holder(4321, &place());
    let forged = node.holder(4322, &format!("/service.slice/docker-{ID}.scope"));
    node.providers.start().unwrap();
    node.wait_for_owner(true_one, |owner| owner.workload.facts.is_some());
    assert_eq!(name(&node.ownership.attribution(forged).unwrap()), None);
}

#[test]
fn an_answer_with_a_process_outside_the_container_is_rejected() {
    let answers = answers(inspect(4322));
    let mut node = Node::new(&[], Some("docker.sock"));
    let _server = engine(&answers, &node.sockets[0]);
    let process = node.holder(4321, &place());
    node.holder(4322, "/system.slice/other.service");
    node.providers.start().unwrap();
    node.providers.wait(Duration::from_mins(1));
    assert_eq!(name(&node.ownership.attribution(process).unwrap()), None);
}

#[test]
fn a_container_that_is_being_started_is_looked_up_again() {
    let answers = answers(inspect(0).replace("\"running\"", "\"created\""));
    let (node, _server, process) = start(&answers);
    node.wait_for_report("docker", |report| report.state == SourceState::Ready);
    answers.lock().unwrap().insert(path(ID), (200, inspect(4321)));
    let owner = node.wait_for_owner(process, |owner| owner.workload.facts.is_some());
    assert_eq!(name(&owner), Some("chat-llm-1"));
}

#[test]
fn a_pod_s_container_is_left_to_cri() {
    let label = "\"com.docker.compose.project\": \"chat\"";
    let in_pod = inspect(4321).replace(label, "\"io.kubernetes.pod.uid\": \"u\"");
    let (node, _server, process) = start(&answers(in_pod));
    node.providers.wait(Duration::from_mins(1));
    assert_eq!(name(&node.ownership.attribution(process).unwrap()), None);
}

#[test]
fn an_engine_that_appears_later_answers_earlier_requests() {
    let mut node = Node::new(&[], Some("docker.sock"));
    node.providers.start().unwrap();
    let process = node.holder(4321, &place());
    let report = node.wait_for_report("docker", |_| true);
    assert_eq!(report.state, SourceState::Absent);
    let _server = engine(&answers(inspect(4321)), &node.sockets[0]);
    let owner = node.wait_for_owner(process, |owner| owner.workload.facts.is_some());
    assert_eq!(name(&owner), Some("chat-llm-1"));
}

#[test]
fn an_answer_that_is_not_json_is_a_failure_with_a_reason() {
    let answers = answers(String::new());
    answers.lock().unwrap().insert("/version".to_owned(), (200, "<html>".to_owned()));
    let (node, _server, _process) = start(&answers);
    let report = node.wait_for_report("docker", |_| true);
    assert_eq!(report.state, SourceState::Failed);
    assert!(report.reason.contains("/version: cannot read the answer"), "{}", report.reason);
}
