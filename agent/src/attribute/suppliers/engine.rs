//! Docker and Podman.
use super::{Desk, Wants};
pub(super) async fn docker(_desk: Desk, _wants: Wants) {}
pub(super) async fn podman(_desk: Desk, _wants: Wants) {}
