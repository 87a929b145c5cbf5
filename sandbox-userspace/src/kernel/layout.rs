//! Offsets of kernel structures for the eBPF programs, read from the running kernel's BTF.

use super::btf::{Btf, BtfError};
use sandbox_common::layout::{ABSENT, AT_LEAST, COUNT, FIELDS, FieldSpec, KernelLayout};
use std::fmt;

/// Fills the layout from [`FIELDS`]. An optional field that the kernel lacks becomes [`ABSENT`].
pub fn read(btf: &Btf) -> Result<KernelLayout<u32>, LayoutError> {
    offsets(btf, &FIELDS.to_array()).map(KernelLayout::from_array)
}

/// What the programs need and the kernel does not have in that form: everything at once.
#[derive(Debug)]
pub struct LayoutError {
    /// One per field, in the order of [`FIELDS`].
    pub faults: Vec<Fault>,
}

/// A field that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It does not exist.
    #[error("{structure}.{} does not exist", names.join(" (or "))]
    Missing {
        /// The structure.
        structure: &'static str,
        /// The names that were tried.
        names: &'static [&'static str],
    },
    /// Its size is not what the programs load.
    #[error("{field} has {found} bytes where {expected} were expected")]
    Size {
        /// `structure.field`
        field: String,
        /// Bytes that the programs load.
        expected: u32,
        /// Bytes that it has.
        found: u32,
    },
    /// A structure was expected to lie there.
    #[error("{field} is no embedded structure")]
    NotEmbedded {
        /// `structure.field`
        field: String,
    },
    /// It does not lie on bytes of its own.
    #[error("{field} is a bit field")]
    Bits {
        /// `structure.field`
        field: String,
    },
    /// BTF gave no answer.
    #[error("{field}: {source}")]
    Unreadable {
        /// `structure.field`
        field: String,
        /// Why.
        source: BtfError,
    },
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this kernel's structures are not those the programs were written for:")?;
        for fault in &self.faults {
            write!(f, "\n  {fault}")?;
        }
        f.write_str(
            "\nNothing is enforced. Please report this list with the output of `uname -r`; until \
             then use a kernel that docs/kernel.md names.",
        )
    }
}

impl std::error::Error for LayoutError {}

/// Byte offsets in the order of `specs`, or every fault.
fn offsets(btf: &Btf, specs: &[FieldSpec; COUNT]) -> Result<[u32; COUNT], LayoutError> {
    let mut faults = Vec::new();
    let offsets = specs.map(|spec| {
        offset(btf, &spec).unwrap_or_else(|fault| {
            faults.push(fault);
            ABSENT
        })
    });
    if faults.is_empty() { Ok(offsets) } else { Err(LayoutError { faults }) }
}

/// One field. A field that exists in an unexpected form is a fault even where it is optional:
/// taking it for absent would hide that the programs and the kernel disagree.
fn offset(btf: &Btf, spec: &FieldSpec) -> Result<u32, Fault> {
    let FieldSpec { structure, names, size, required } = *spec;
    for name in names {
        let field = format!("{structure}.{name}");
        let found = match btf.field(structure, name) {
            Ok(Some(found)) => found,
            Ok(None) => continue,
            Err(source) => return Err(Fault::Unreadable { field, source }),
        };
        if found.bitfield {
            return Err(Fault::Bits { field });
        }
        // An array without a fixed length has no bytes of its own.
        if size == 0 && !found.embedded && found.size_bytes != 0 {
            return Err(Fault::NotEmbedded { field });
        }
        let expected = size & !AT_LEAST;
        let fits =
            if size == expected { found.size_bytes == size } else { found.size_bytes >= expected };
        if size != 0 && !fits {
            return Err(Fault::Size { field, expected, found: found.size_bytes });
        }
        return Ok(found.offset_bits / 8);
    }
    if required { Err(Fault::Missing { structure, names }) } else { Ok(ABSENT) }
}

#[cfg(test)]
mod tests;
