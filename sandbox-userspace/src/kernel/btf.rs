//! Types of the running kernel, read from its BTF (Documentation/bpf/btf.rst).
//!
//! Three questions are answered: where a field of a structure lies, whether a function exists, and
//! what its parameters are. The bytes come from the kernel, but nothing here trusts them: every
//! offset and type id is checked, every chain is bounded, nothing panics.

use format::{Type, kind, word};
use named::Named;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

#[cfg(test)]
pub(crate) mod builder;
mod format;
mod named;
#[cfg(test)]
pub(crate) mod tests;

/// Where the kernel shows its own types.
pub const KERNEL: &str = "/sys/kernel/btf/vmlinux";

/// Longest chain of modifiers, pointers and nested members; real ones stay below ten.
const CHAIN: u32 = 32;
/// Most members looked at for one field; the largest kernel structures have a few hundred.
const MEMBERS: u32 = 100_000;

/// Why BTF could not be read, or could not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BtfError {
    /// The file cannot be read.
    #[error(
        "cannot read the kernel's types from {path}: {source}; the kernel must be built with CONFIG_DEBUG_INFO_BTF=y and sysfs mounted at /sys"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The bytes break a rule of the format.
    #[error("malformed BTF at byte {at}: {what}")]
    Malformed {
        /// The rule.
        what: &'static str,
        /// Offset from the start of the file.
        at: usize,
    },
    /// A kind of type whose size is not known, so what follows cannot be found.
    #[error(
        "BTF type {id} is of kind {kind}, which this version does not know; a newer version of sandbox is needed for this kernel"
    )]
    UnknownKind {
        /// The kind.
        kind: u8,
        /// Number of the type.
        id: u32,
    },
    /// A type refers to one that does not exist.
    #[error("BTF refers to type {id}, which does not exist")]
    NoType {
        /// The number.
        id: u32,
    },
    /// A type that has no size stands where a size is needed.
    #[error("BTF type {id} has no size")]
    Unsized {
        /// Its number.
        id: u32,
    },
    /// References go round in a circle, or on for longer than any real ones do.
    #[error("BTF type {id} nests without end")]
    Endless {
        /// Where it was given up.
        id: u32,
    },
    /// Several structures of one name do not agree.
    #[error("the kernel has several `{name}` that differ, so it cannot be told which is meant")]
    Ambiguous {
        /// The structure's field, or the function.
        name: String,
    },
}

/// Where a field lies, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bits from the start of the structure.
    pub offset_bits: u32,
    /// Bytes of its type.
    pub size_bytes: u32,
    /// It shares its bytes with other fields.
    pub bitfield: bool,
    /// It is a structure or union itself.
    pub embedded: bool,
}

/// A parameter of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name; empty where the kernel gives none.
    pub name: String,
    /// Its type as C writes it, without `const` and `volatile`: `struct path *`.
    pub type_name: String,
}

/// The types of a kernel.
#[derive(Debug)]
pub struct Btf {
    data: Vec<u8>,
    strings: Range<usize>,
    /// By id; 0 is `void`.
    types: Vec<Type>,
    named: Named,
}

/// What is looked for, and how many members may still be looked at.
struct Search<'a> {
    name: &'a [u8],
    budget: u32,
}

impl Btf {
    /// Reads the types of the running kernel from [`KERNEL`].
    pub fn of_kernel() -> Result<Self, BtfError> {
        Self::read(Path::new(KERNEL))
    }

    /// Reads a file of BTF.
    pub fn read(path: &Path) -> Result<Self, BtfError> {
        let data = std::fs::read(path)
            .map_err(|source| BtfError::Read { path: path.to_path_buf(), source })?;
        Self::parse(data)
    }

    /// Checks the form of `data` and finds its types, in one pass.
    pub fn parse(data: Vec<u8>) -> Result<Self, BtfError> {
        let (strings, types) = format::parse(&data)?;
        let mut named = Named::with(types.len());
        for (ty, id) in types.iter().zip(0..) {
            if matches!(ty.kind, kind::STRUCT | kind::UNION | kind::FUNC) {
                named.add(&data[strings.start + ty.name as usize..strings.end], id);
            }
        }
        Ok(Self { data, strings, types, named })
    }

    /// Finds the field of a structure (or union), looking into its anonymous members as C does.
    /// `None`: there is no such structure, or none of its fields has this name.
    pub fn field(&self, structure: &str, name: &str) -> Result<Option<Field>, BtfError> {
        let same = |ty: &Type| matches!(ty.kind, kind::STRUCT | kind::UNION);
        let found = self.named(structure, same).map(|ty| {
            let mut search = Search { name: name.as_bytes(), budget: MEMBERS };
            self.member(ty, &mut search, 0, CHAIN)
        });
        Ok(agreed(&format!("{structure}.{name}"), found)?.flatten())
    }

    /// The parameters of a function; `None` where the kernel has no such function.
    pub fn function(&self, name: &str) -> Result<Option<Vec<Param>>, BtfError> {
        let found = self.named(name, |ty| ty.kind == kind::FUNC).map(|func| {
            let proto = self.get(func.value)?;
            if proto.kind != kind::FUNC_PROTO {
                return Err(BtfError::Malformed {
                    what: "function without prototype",
                    at: func.detail,
                });
            }
            (0..proto.count as usize)
                .map(|index| {
                    let at = proto.detail + index * 8;
                    let mut type_name = String::new();
                    self.write_type(word(&self.data, at + 4)?, &mut type_name, CHAIN)?;
                    Ok(Param { name: self.string(word(&self.data, at)?)?, type_name })
                })
                .collect()
        });
        agreed(name, found)
    }

    /// Number of types.
    pub fn len(&self) -> usize {
        self.types.len() - 1
    }

    /// There are no types.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn named(&self, name: &str, kinds: impl Fn(&Type) -> bool) -> impl Iterator<Item = &Type> {
        let alike = self.named.alike(name.as_bytes());
        alike
            .filter_map(|id| self.types.get(id as usize))
            .filter(move |ty| kinds(ty) && self.bytes(ty.name) == Some(name.as_bytes()))
    }

    /// Looks for a member, `base` bits into the outermost structure.
    fn member(
        &self,
        outer: &Type,
        search: &mut Search<'_>,
        base: u32,
        chain: u32,
    ) -> Result<Option<Field>, BtfError> {
        for index in 0..outer.count as usize {
            let at = outer.detail + index * 12;
            let (name, id) = (word(&self.data, at)?, word(&self.data, at + 4)?);
            let place = word(&self.data, at + 8)?;
            let (bits, place) =
                if outer.flag { (place >> 24, place & 0xff_ffff) } else { (0, place) };
            let endless = BtfError::Endless { id };
            if chain == 0 || search.budget == 0 {
                return Err(endless);
            }
            search.budget -= 1;
            let offset_bits = base.checked_add(place).ok_or(endless)?;
            if self.bytes(name) == Some(search.name) {
                let inner = self.resolve(id)?;
                let odd = inner.kind == kind::INT && self.partial(inner)?;
                return Ok(Some(Field {
                    offset_bits,
                    size_bytes: self.size(id)?,
                    bitfield: bits != 0 || odd || offset_bits % 8 != 0,
                    embedded: matches!(inner.kind, kind::STRUCT | kind::UNION),
                }));
            }
            if name == 0 {
                let inner = self.resolve(id)?;
                if matches!(inner.kind, kind::STRUCT | kind::UNION)
                    && let Some(found) = self.member(inner, search, offset_bits, chain - 1)?
                {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    /// An integer that does not fill its bytes: how bitfields look without `kind_flag`.
    fn partial(&self, int: &Type) -> Result<bool, BtfError> {
        let encoding = word(&self.data, int.detail)?;
        Ok(encoding >> 16 & 0xff != 0 || u64::from(encoding & 0xff) != u64::from(int.value) * 8)
    }

    /// The type behind names and modifiers.
    fn resolve(&self, id: u32) -> Result<&Type, BtfError> {
        let mut ty = self.get(id)?;
        for _ in 0..CHAIN {
            match ty.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    ty = self.get(ty.value)?;
                }
                _ => return Ok(ty),
            }
        }
        Err(BtfError::Endless { id })
    }

    /// Bytes of a type.
    fn size(&self, id: u32) -> Result<u32, BtfError> {
        let (mut element, mut count) = (id, 1_u32);
        for _ in 0..CHAIN {
            let ty = self.resolve(element)?;
            let size = match ty.kind {
                kind::INT
                | kind::ENUM
                | kind::ENUM64
                | kind::FLOAT
                | kind::STRUCT
                | kind::UNION => ty.value,
                // The kernel's pointers are as wide as ours: the programs are built for 64 bits only.
                kind::PTR => usize::BITS / 8,
                kind::ARRAY => {
                    element = word(&self.data, ty.detail)?;
                    count = count
                        .checked_mul(word(&self.data, ty.detail + 8)?)
                        .ok_or(BtfError::Unsized { id })?;
                    continue;
                }
                _ => return Err(BtfError::Unsized { id }),
            };
            return size.checked_mul(count).ok_or(BtfError::Unsized { id });
        }
        Err(BtfError::Endless { id })
    }

    /// Writes a type as C does, without qualifiers.
    fn write_type(&self, id: u32, to: &mut String, chain: u32) -> Result<(), BtfError> {
        let chain = chain.checked_sub(1).ok_or(BtfError::Endless { id })?;
        let ty = self.get(id)?;
        let word = match ty.kind {
            kind::VOID => "void",
            kind::CONST | kind::VOLATILE | kind::RESTRICT | kind::TYPE_TAG => {
                return self.write_type(ty.value, to, chain);
            }
            kind::PTR => {
                self.write_type(ty.value, to, chain)?;
                to.push_str(if to.ends_with('*') { "*" } else { " *" });
                return Ok(());
            }
            kind::ARRAY => {
                self.write_type(word(&self.data, ty.detail)?, to, chain)?;
                let _ = write!(to, "[{}]", word(&self.data, ty.detail + 8)?);
                return Ok(());
            }
            kind::STRUCT => "struct ",
            kind::UNION => "union ",
            kind::FWD => {
                if ty.flag {
                    "union "
                } else {
                    "struct "
                }
            }
            kind::ENUM | kind::ENUM64 => "enum ",
            kind::FUNC_PROTO => "function",
            _ => "",
        };
        to.push_str(word);
        to.push_str(&self.string(ty.name)?);
        Ok(())
    }

    fn get(&self, id: u32) -> Result<&Type, BtfError> {
        self.types.get(id as usize).ok_or(BtfError::NoType { id })
    }

    fn bytes(&self, name: u32) -> Option<&[u8]> {
        let text = self.data.get(self.strings.clone())?.get(name as usize..)?;
        text.split(|byte| *byte == 0).next()
    }

    fn string(&self, name: u32) -> Result<String, BtfError> {
        let bytes = self.bytes(name).ok_or(BtfError::Malformed {
            what: "name lies outside the strings",
            at: self.strings.start,
        })?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }
}

/// All definitions of one name must give the same answer: different parts of a kernel may use
/// one name for different things, and a guess could enforce on the wrong one.
fn agreed<T: PartialEq>(
    name: &str,
    mut answers: impl Iterator<Item = Result<T, BtfError>>,
) -> Result<Option<T>, BtfError> {
    let Some(first) = answers.next().transpose()? else { return Ok(None) };
    for other in answers {
        if other? != first {
            return Err(BtfError::Ambiguous { name: name.to_owned() });
        }
    }
    Ok(Some(first))
}
