//! The forms of ids in a path.

use gpuwho_model::ids::PodUid;
use std::sync::Arc;

/// Length of a static pod's UID and of an ECS task id.
pub(super) const STATIC_UID_LEN: usize = 32;
/// Length of a container id, the same for every supported runtime.
const CONTAINER_ID_LEN: usize = 64;
/// `s` and 13 Crockford base 32 digits (Slurm 26.05).
const SLUID_LEN: usize = 14;

pub(super) fn is_container_id(text: &str) -> bool {
    is_hex(text, CONTAINER_ID_LEN)
}

pub(super) fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

pub(super) fn is_uuid(text: &str) -> bool {
    let mut groups = text.split('-');
    [8, 4, 4, 4, 12].iter().all(|len| groups.next().is_some_and(|group| is_hex(group, *len)))
        && groups.next().is_none()
}

/// A pod UID as systemd's unit name or the directory spells it: 8-4-4-4-12, or 32 digits for a
/// static pod.
pub(super) fn pod_uid(text: &str) -> Option<PodUid> {
    if is_hex(text, STATIC_UID_LEN) {
        return Some(PodUid::new(text));
    }
    let dashed = text.replace('_', "-");
    is_uuid(&dashed).then(|| PodUid::new(&dashed))
}

pub(super) fn is_sluid(text: &str) -> bool {
    text.len() == SLUID_LEN
        && text.strip_prefix('s').is_some_and(|digits| digits.bytes().all(is_crockford))
}

/// Digits and capitals without I, L, O and U.
fn is_crockford(byte: u8) -> bool {
    byte.is_ascii_digit() || (byte.is_ascii_uppercase() && !b"ILOU".contains(&byte))
}

/// A plain decimal number, no sign.
pub(super) fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Decodes systemd's `\xHH` escapes in a unit name; malformed ones stay unchanged.
pub(super) fn unescape(name: &str) -> Arc<str> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, after)) = rest.split_once("\\x") {
        bytes.extend_from_slice(before.as_bytes());
        let code = after.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code {
            Some(code) => bytes.push(code),
            None => bytes.extend_from_slice(b"\\x"),
        }
        rest = after.get(code.map_or(0, |_| 2)..).unwrap_or_default();
    }
    bytes.extend_from_slice(rest.as_bytes());
    Arc::from(String::from_utf8_lossy(&bytes).as_ref())
}
