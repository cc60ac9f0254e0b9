//! Inference engines: found among the processes that hold a device, and read by their own pages of
//! metrics, each as a part of the source.
//!
//! The finder is part 0. It looks at cgroups with processes that hold a device, starts a part for
//! each server, ends it with the server, and tells on which devices each engine is.
//!
//! Owns the table of engines, a file each, and how their pages are found, asked for and parsed. May use
//! `collect` and what is below it. Knows no vendor, no BPF and no sink.
//!
//! Rooms, from below: `table`, `recognize`, `fetch`, `settings`, `find`, `exposition`, `dcgm`,
//! `status`, `page`, `endpoint`, `finder`, `accounts`, `dynamo`, `llamacpp`, `nim`, `sglang`, `source`,
//! `tgi`, `triton`, `trtllm`, `vllm`, `fuzz`.

#![forbid(unsafe_code)]

mod accounts;
mod dcgm;
mod dynamo;
mod endpoint;
pub mod exposition;
mod fetch;
mod find;
mod finder;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod llamacpp;
mod nim;
pub mod page;
mod recognize;
mod settings;
mod sglang;
mod source;
mod status;
pub mod table;
mod tgi;
mod triton;
mod trtllm;
mod vllm;

pub use source::SOURCE;

use accounts::{Accounts, Places};
use dcgm::DcgmFeeds;
use fetch::LargePages;
use gpuwho_collect::snapshot::Control;
use gpuwho_collect::source::Readers;
use gpuwho_model::ids::GpuId;
use gpuwho_model::paths::Paths;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::engines::Engines;
use gpuwho_owners::inventory::Inventory;
use page::ParseTurn;
use status::Endpoints;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use table::Engine;

/// The source's name, and its threads': `collect:engines`.
pub const NAME: &str = "engines";

/// Every engine that is read. To add one: its file here, its `mod` and its row. Of several on one
/// page the first row is the page's engine: Triton and Dynamo are before the back ends that they
/// serve, and what
/// has no prefix comes last.
pub static ENGINES: &[&Engine] = &[
    &triton::TRITON,
    &dynamo::DYNAMO,
    &vllm::VLLM,
    &sglang::SGLANG,
    &trtllm::TRTLLM,
    &tgi::TGI,
    &llamacpp::LLAMACPP,
    &dcgm::DCGM,
    &nim::NIM,
];

/// What the finder and the endpoints share.
#[derive(Clone, Debug)]
struct Shared {
    paths: Paths,
    ownership: Ownership,
    engines: Arc<Engines>,
    inventory: Arc<Inventory>,
    readers: Readers,
    endpoints: Endpoints,
    large: LargePages,
    drafting: ParseTurn,
    fed: DcgmFeeds,
    accounts: Accounts,
    places: Places,
    /// The agent's own network namespace, by inode.
    own_network: Option<u64>,
    /// The agent's interval.
    interval: Duration,
    /// Time between two requests, where it is another one.
    every: Option<Duration>,
}

impl Shared {
    /// The devices whose performance counters the agent reads itself.
    fn counted_devices(&self) -> HashSet<GpuId> {
        let snapshots = self.readers.all().iter().map(Control::snapshot).collect::<Vec<_>>();
        let devices = snapshots.iter().flat_map(|snapshot| &snapshot.devices);
        devices.filter(|device| device.has_counters).map(|device| device.gpu).collect()
    }
}
