//! Makes BTF for tests.
#![expect(clippy::cast_possible_truncation, reason = "test files are small")]

use super::format::kind;

/// Types and strings that grow.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    types: Vec<u8>,
    strings: Vec<u8>,
    layout: Vec<u8>,
    count: u32,
}

/// Name, type and bit offset of a member; a bitfield's size in the upper 8 bits of the offset.
pub(crate) type Member<'a> = (&'a str, u32, u32);

impl Builder {
    pub(crate) fn new() -> Self {
        Self { strings: vec![0], ..Self::default() }
    }

    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend_from_slice(text.as_bytes());
        self.strings.push(0);
        at
    }

    /// Appends any type; its id.
    pub(crate) fn push(
        &mut self,
        name: &str,
        (kind, flag): (u8, bool),
        count: u32,
        value: u32,
        detail: &[u32],
    ) -> u32 {
        let name = self.string(name);
        let info = u32::from(flag) << 31 | u32::from(kind) << 24 | count;
        for word in [name, info, value].iter().chain(detail) {
            self.types.extend_from_slice(&word.to_ne_bytes());
        }
        self.count += 1;
        self.count
    }

    pub(crate) fn int(&mut self, name: &str, bytes: u32) -> u32 {
        self.push(name, (kind::INT, false), 0, bytes, &[bytes * 8])
    }

    pub(crate) fn pointer(&mut self, to: u32) -> u32 {
        self.push("", (kind::PTR, false), 0, to, &[])
    }

    pub(crate) fn typedef(&mut self, name: &str, of: u32) -> u32 {
        self.push(name, (kind::TYPEDEF, false), 0, of, &[])
    }

    pub(crate) fn constant(&mut self, of: u32) -> u32 {
        self.push("", (kind::CONST, false), 0, of, &[])
    }

    pub(crate) fn volatile(&mut self, of: u32) -> u32 {
        self.push("", (kind::VOLATILE, false), 0, of, &[])
    }

    pub(crate) fn array(&mut self, of: u32, length: u32) -> u32 {
        self.push("", (kind::ARRAY, false), 0, 0, &[of, of, length])
    }

    pub(crate) fn structure(&mut self, name: &str, bytes: u32, members: &[Member<'_>]) -> u32 {
        self.composite(kind::STRUCT, name, bytes, members)
    }

    pub(crate) fn union(&mut self, name: &str, bytes: u32, members: &[Member<'_>]) -> u32 {
        self.composite(kind::UNION, name, bytes, members)
    }

    fn composite(&mut self, kind: u8, name: &str, bytes: u32, members: &[Member<'_>]) -> u32 {
        let detail: Vec<u32> =
            members.iter().flat_map(|(name, id, place)| [self.string(name), *id, *place]).collect();
        let bits = members.iter().any(|(_, _, place)| place >> 24 != 0);
        self.push(name, (kind, bits), members.len() as u32, bytes, &detail)
    }

    pub(crate) fn function(&mut self, name: &str, params: &[(&str, u32)]) -> u32 {
        let detail: Vec<u32> =
            params.iter().flat_map(|(name, id)| [self.string(name), *id]).collect();
        let proto = self.push("", (kind::FUNC_PROTO, false), params.len() as u32, 0, &detail);
        self.push(name, (kind::FUNC, false), 1, proto, &[])
    }

    /// Adds a layout section that describes kinds from 0 on: (bytes once, bytes for each).
    pub(crate) fn layout(&mut self, kinds: &[(u8, u8)]) {
        self.layout = kinds.iter().flat_map(|(once, each)| [*once, *each, 0, 0]).collect();
    }

    /// The file.
    pub(crate) fn finish(self) -> Vec<u8> {
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        let mut header = vec![0, types, types, strings];
        if !self.layout.is_empty() {
            header.extend([types + strings, self.layout.len() as u32]);
        }
        let mut file = 0xeb9f_u16.to_ne_bytes().to_vec();
        file.extend([1, 0]);
        file.extend((8 + header.len() as u32 * 4).to_ne_bytes());
        file.extend(header.iter().flat_map(|word| word.to_ne_bytes()));
        file.extend(self.types);
        file.extend(self.strings);
        file.extend(self.layout);
        file
    }
}
