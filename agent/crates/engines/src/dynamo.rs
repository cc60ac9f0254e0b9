//! Workers of NVIDIA Dynamo, which pass on the page of the engine inside them (ai-dynamo/dynamo,
//! `docs/backends/*/prometheus.md`). Its own families are not read.

use super::table::{Engine, Signs};

/// A worker. The port is what Dynamo's documents and charts set by `DYN_SYSTEM_PORT`; another one is
/// named in `engines.endpoints`.
pub(super) static DYNAMO: Engine = Engine {
    name: "dynamo",
    prefixes: &["dynamo_"],
    marks: &[],
    signs: Signs {
        programs: &[],
        titles: &[],
        arguments: &["dynamo.vllm", "dynamo.sglang", "dynamo.trtllm"],
        ports: &[8081],
        port_options: &[],
        version: None,
        paths: &["/metrics"],
    },
    labels: &[],
    families: &[],
    unread: &["dynamo_*"],
};
