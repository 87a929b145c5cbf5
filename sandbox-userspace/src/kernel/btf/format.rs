//! The form of a BTF file: header, types, strings.

use super::BtfError;
use std::ops::Range;

/// `struct btf_header` before the layout section was added to it.
const HEADER: usize = 24;
/// `struct btf_type`.
const TYPE: usize = 12;

/// Kinds, as numbered in include/uapi/linux/btf.h.
pub(super) mod kind {
    pub(crate) const VOID: u8 = 0;
    pub(crate) const INT: u8 = 1;
    pub(crate) const PTR: u8 = 2;
    pub(crate) const ARRAY: u8 = 3;
    pub(crate) const STRUCT: u8 = 4;
    pub(crate) const UNION: u8 = 5;
    pub(crate) const ENUM: u8 = 6;
    pub(crate) const FWD: u8 = 7;
    pub(crate) const TYPEDEF: u8 = 8;
    pub(crate) const VOLATILE: u8 = 9;
    pub(crate) const CONST: u8 = 10;
    pub(crate) const RESTRICT: u8 = 11;
    pub(crate) const FUNC: u8 = 12;
    pub(crate) const FUNC_PROTO: u8 = 13;
    pub(crate) const VAR: u8 = 14;
    pub(crate) const DATASEC: u8 = 15;
    pub(crate) const FLOAT: u8 = 16;
    pub(crate) const DECL_TAG: u8 = 17;
    pub(crate) const TYPE_TAG: u8 = 18;
    pub(crate) const ENUM64: u8 = 19;
}

/// `struct btf_type`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Type {
    pub(super) name: u32,
    pub(super) kind: u8,
    /// `kind_flag`: members' offsets carry bitfield sizes; a forward declaration is of a union.
    pub(super) flag: bool,
    /// Number of members or parameters.
    pub(super) count: u32,
    /// Size in bytes or id of another type, by kind.
    pub(super) value: u32,
    /// Where the data after `struct btf_type` starts.
    pub(super) detail: usize,
}

/// Where the strings lie, and the types by id (0 is `void`).
pub(super) fn parse(data: &[u8]) -> Result<(Range<usize>, Vec<Type>), BtfError> {
    let malformed = |at, what| BtfError::Malformed { what, at };
    if data.get(..2) != Some(&0xeb9f_u16.to_ne_bytes()[..]) {
        return Err(malformed(0, "no BTF magic in this machine's byte order"));
    }
    if data.get(2..4) != Some(&[1, 0][..]) {
        return Err(malformed(2, "version is not 1 or flags are set"));
    }
    let header = word(data, 4)? as usize;
    if header < HEADER {
        return Err(malformed(4, "header is too short"));
    }
    let section = |at: usize| {
        let start = header.checked_add(word(data, at)? as usize);
        let end = start.and_then(|s| s.checked_add(word(data, at + 4).ok()? as usize));
        match (start, end) {
            (Some(start), Some(end)) if end <= data.len() => Ok(start..end),
            _ => Err(malformed(at, "section ends behind the end of the file")),
        }
    };
    let (section_types, strings) = (section(8)?, section(16)?);
    // The sizes of every kind the kernel uses, since 7.x: lets older readers skip newer kinds.
    let layout = if header >= HEADER + 8 { section(HEADER)? } else { 0..0 };
    let text = &data[strings.clone()];
    if text.first() != Some(&0) || text.last() != Some(&0) {
        return Err(malformed(strings.start, "strings do not start and end with a zero"));
    }

    let void = Type { name: 0, kind: kind::VOID, flag: false, count: 0, value: 0, detail: 0 };
    // Most of a kernel's types take as much again as they do themselves.
    let mut types = Vec::with_capacity(section_types.len() / (2 * TYPE));
    types.push(void);
    let mut at = section_types.start;
    while at < section_types.end {
        let id = u32::try_from(types.len()).map_err(|_| malformed(at, "too many types"))?;
        let [name, info, value] = words(data, at)?;
        let found = Type {
            name,
            kind: (info >> 24 & 0x7f) as u8,
            flag: info >> 31 == 1,
            count: info & 0xff_ffff,
            value,
            detail: at + TYPE,
        };
        if name as usize >= strings.len() {
            return Err(malformed(at, "name lies outside the strings"));
        }
        let size = detail_size(&found)
            .or_else(|| layout_size(&found, &data[layout.clone()]))
            .ok_or(BtfError::UnknownKind { kind: found.kind, id })?;
        at = match found.detail.checked_add(size) {
            Some(next) if next <= section_types.end => next,
            _ => return Err(malformed(at, "type ends behind the end of its section")),
        };
        types.push(found);
    }
    Ok((strings, types))
}

/// Bytes that follow `struct btf_type`; `None` for a kind that is not known.
fn detail_size(ty: &Type) -> Option<usize> {
    let each: usize = match ty.kind {
        kind::INT | kind::VAR | kind::DECL_TAG => return Some(4),
        kind::ARRAY => return Some(12),
        kind::PTR
        | kind::FWD
        | kind::TYPEDEF
        | kind::VOLATILE
        | kind::CONST
        | kind::RESTRICT
        | kind::FUNC
        | kind::FLOAT
        | kind::TYPE_TAG => return Some(0),
        kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12,
        kind::ENUM | kind::FUNC_PROTO => 8,
        _ => return None,
    };
    each.checked_mul(ty.count as usize)
}

/// The same from the layout section: `struct btf_layout { u8 info_sz, elem_sz; u16 flags }` a kind.
fn layout_size(ty: &Type, layout: &[u8]) -> Option<usize> {
    let (entries, _) = layout.as_chunks::<4>();
    let [once, each, ..] = *entries.get(usize::from(ty.kind)).filter(|_| ty.kind != kind::VOID)?;
    usize::from(each).checked_mul(ty.count as usize)?.checked_add(usize::from(once))
}

/// The three words of `struct btf_type`.
fn words(data: &[u8], at: usize) -> Result<[u32; 3], BtfError> {
    let bytes = data.get(at..).and_then(<[u8]>::first_chunk::<TYPE>);
    let bytes = bytes.ok_or(BtfError::Malformed { what: "file ends too early", at })?;
    let (words, _) = bytes.as_chunks::<4>();
    Ok([words[0], words[1], words[2]].map(u32::from_ne_bytes))
}

/// The 32-bit word at an offset, native byte order.
pub(super) fn word(data: &[u8], at: usize) -> Result<u32, BtfError> {
    at.checked_add(4)
        .and_then(|end| data.get(at..end)?.try_into().ok())
        .map(u32::from_ne_bytes)
        .ok_or(BtfError::Malformed { what: "file ends too early", at })
}
