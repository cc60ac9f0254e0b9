//! Naming profiles of the endpoint: which names and labels the page has.

/// A naming profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Profile {
    /// The catalogue's names, translated.
    Native,
    /// The names and labels of NVIDIA's dcgm-exporter, for its dashboards and rules.
    Dcgm,
}

impl Profile {
    /// Every profile, in the order of the documents.
    pub(super) const ALL: [Self; 2] = [Self::Native, Self::Dcgm];

    /// The word in the configuration.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Dcgm => "dcgm",
        }
    }
}
