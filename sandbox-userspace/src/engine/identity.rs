//! Which engine a build and a kernel share.

use super::Way;
use super::load::{PROGRAMS, node_cache};
use sandbox_common::layout::KernelLayout;
use sha2::{Digest as _, Sha256};
use std::fmt;
use zerocopy::IntoBytes as _;

/// Raised when keys of maps, labels or what is pinned beside the object's own maps change their meaning:
/// by it a build knows whether it may remove what is left on another build's engine.
pub(super) const FORMAT: u32 = 3;

/// Name of an engine: of the programs, of where they find the fields of this kernel's structures, and
/// of how they are attached, and whether they remember places. Builds that differ in any of these have engines of their own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Identity(String);

impl Identity {
    /// Of the engine that this build loads.
    pub fn own(layout: &KernelLayout<u32>, way: Way) -> Self {
        Self::of(PROGRAMS, layout, way, node_cache())
    }

    fn of(programs: &[u8], layout: &KernelLayout<u32>, way: Way, node_cache: bool) -> Self {
        let way: &[u8] = match way {
            Way::BpfLsm => b"bpf_lsm",
            Way::ModifyReturn => b"modify_return",
        };
        let cache: &[u8] = if node_cache { b"cache" } else { b"no cache" };
        let mut hash = Sha256::new();
        for part in [&FORMAT.to_ne_bytes(), way, cache, layout.as_bytes(), programs] {
            // The length first, so that no two lists of parts are the same bytes.
            hash.update(part.len().to_ne_bytes());
            hash.update(part);
        }
        let [first, ..]: [[u8; 8]; 4] = zerocopy::transmute!(hash.finalize().0);
        Self(format!("{:016x}", u64::from_be_bytes(first)))
    }

    /// From the name of its directory, without `engine-`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (text.len() == 16 && digits).then(|| Self(text.into()))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_differs_makes_another_engine() {
        let layout = KernelLayout::default();
        let other = KernelLayout { file_path: 8, ..layout };
        let mut names = vec![
            Identity::of(b"object", &layout, Way::BpfLsm, true),
            Identity::of(b"object", &layout, Way::ModifyReturn, true),
            Identity::of(b"object", &other, Way::BpfLsm, true),
            Identity::of(b"another", &layout, Way::BpfLsm, true),
            Identity::of(b"object", &layout, Way::BpfLsm, false),
        ];
        assert_eq!(names[0], Identity::of(b"object", &layout, Way::BpfLsm, true));
        for name in &names {
            assert_eq!(Identity::parse(&name.to_string()).as_ref(), Some(name));
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 5);
    }

    #[test]
    fn other_names_are_none() {
        for text in
            ["", "0123456789abcde", "0123456789ABCDEF", "0123456789abcdef0", "../../../../../.."]
        {
            assert_eq!(Identity::parse(text), None, "{text}");
        }
    }
}
