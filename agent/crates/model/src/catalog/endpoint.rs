//! Metrics about the reading of inference engines: which there are, on which devices, and what came
//! of each request for a page.

use super::attributes as attr;
use super::{dims, metrics};
use crate::ids::EngineId;
use crate::sample::{Agent, EngineGpu};

dims! {
    /// What came of a request for an engine's page.
    PageOutcome: attr::ENGINE_PAGE_OUTCOME {
        /// It was read.
        Read = "read",
        /// Nobody accepted the connection, or not the engine's own processes.
        Unreachable = "unreachable",
        /// No whole answer in time.
        Late = "late",
        /// More bytes than a page may have, or no memory for another large page.
        TooLarge = "too_large",
        /// A redirect, an error, another media type, or no HTTP.
        Refused = "refused",
        /// A page that is none of a known engine's.
        NotUnderstood = "not_understood",
    }
    /// How the families of a page differ from those that the agent knows of the engine.
    FamilyDrift: attr::ENGINE_FAMILY_DRIFT {
        /// They have the engine's prefix, and the agent knows none of that name.
        Unknown = "unknown",
        /// The agent expects them of this version, and they are not there.
        Missing = "missing",
    }
}

metrics! {
    /// An inference engine on one of its devices: always 1. Joins the engine's metrics with the
    /// device's, by owner, engine and port on one side and `gpu.uuid` on the other.
    INFO: Gauge<i64> of EngineGpu = "gpuwho.engine.info" ["{info}"]
        from "the processes of the engine that the driver lists on the device";
    /// Whether the engine's page was read at the last attempt: 1, else 0.
    UP: Gauge<i64> of EngineId = "gpuwho.engine.up" ["{flag}"]
        from "the answer to the last request";
    /// Families of the last page that differ from what the agent knows of the engine;
    /// `gpuwho doctor` names them.
    FAMILIES: Gauge<i64> of EngineId, by FamilyDrift = "gpuwho.engine.families" ["{family}"]
        from "the engine's page against its table";
    /// Requests for engines' pages, by what came of them.
    REQUESTS: Counter<i64> of Agent, by PageOutcome = "gpuwho.engine.requests" ["{request}"]
        from "the answers";
}
