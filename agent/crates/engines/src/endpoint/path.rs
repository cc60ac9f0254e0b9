//! Which path of a server is asked for its page.

use super::ReadError;
use crate::fetch::{FetchError, Place, Target};
use crate::find::Server;
use gpuwho_collect::tls::TlsFiles;

/// The path that is asked: an engine's next one after each that is not there.
#[derive(Debug, Default)]
pub(super) struct PagePath {
    /// Among the engine's paths.
    index: usize,
    has_slash: bool,
}

impl PagePath {
    /// Where a found server is asked: at the path its pod names, else at its engine's.
    pub(super) fn target(&self, server: &Server) -> Target {
        let annotated = server.annotated.as_ref();
        let named = annotated.and_then(|annotated| annotated.path.as_deref());
        let path = paths(Some(server)).get(self.index).copied().unwrap_or("/metrics");
        let is_tls = annotated.is_some_and(|annotated| annotated.is_tls);
        Target {
            place: Place::At(server.at),
            path: self.of(named.unwrap_or(path)),
            tls: is_tls.then(TlsFiles::default),
            token: None,
        }
    }

    /// The path, with the slash that the server wants.
    pub(super) fn of(&self, path: &str) -> String {
        let slash = if self.has_slash { "/" } else { "" };
        format!("{path}{slash}")
    }

    /// What to ask the next time, after an answer that is no page: at the same address and port.
    pub(super) fn advance(&mut self, error: &ReadError, paths: &[&str]) {
        match error {
            ReadError::Fetch(FetchError::Redirect { adds_slash: true, .. }) => {
                self.has_slash = true;
            }
            ReadError::Fetch(FetchError::Status(_) | FetchError::MediaType(_))
                if !paths.is_empty() =>
            {
                self.index = (self.index + 1) % paths.len();
                self.has_slash = false;
            }
            _ => {}
        }
    }
}

/// The paths of a server's engine, the likeliest first.
pub(super) fn paths(server: Option<&Server>) -> &'static [&'static str] {
    server.and_then(|server| server.engine).map_or(&[], |engine| engine.signs.paths)
}
