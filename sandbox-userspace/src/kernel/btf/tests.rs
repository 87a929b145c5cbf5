#![expect(clippy::cast_possible_truncation, reason = "test files are small")]

use super::builder::{Builder, Member};
use super::*;
use btf_rs::{Btf as Oracle, Type as OracleType};
use proptest::prelude::*;
use sandbox_common::layout::FIELDS;

fn parse(builder: Builder) -> Btf {
    Btf::parse(builder.finish()).expect("well-formed")
}

fn field(offset_bytes: u32, size_bytes: u32) -> Field {
    Field { offset_bits: offset_bytes * 8, size_bytes, bitfield: false, embedded: false }
}

#[test]
fn a_field_behind_names_and_modifiers() {
    let mut b = Builder::new();
    let int = b.int("unsigned int", 4);
    let name = b.typedef("fmode_t", int);
    let name = b.constant(name);
    let name = b.volatile(name);
    let pointer = b.pointer(int);
    let array = b.array(pointer, 3);
    b.structure("file", 64, &[("f_mode", name, 32), ("f_op", pointer, 64), ("f_all", array, 128)]);
    let btf = parse(b);
    assert_eq!(btf.field("file", "f_mode").unwrap(), Some(field(4, 4)));
    assert_eq!(btf.field("file", "f_op").unwrap(), Some(field(8, 8)));
    assert_eq!(btf.field("file", "f_all").unwrap(), Some(field(16, 24)));
    assert_eq!(btf.field("file", "f_none").unwrap(), None);
    assert_eq!(btf.field("inode", "f_mode").unwrap(), None);
    // A typedef is not a structure, and a part of a name is not the name.
    assert_eq!(btf.field("fmode_t", "f_mode").unwrap(), None);
    assert_eq!(btf.field("fil", "f_mode").unwrap(), None);
    assert_eq!(btf.field("file", "").unwrap(), None);
}

#[test]
fn a_field_in_anonymous_members() {
    let mut b = Builder::new();
    let int = b.int("int", 4);
    let path = b.structure("path", 16, &[("mnt", int, 0)]);
    let held = b.constant(path);
    let union = b.union("", 16, &[("f_path", held, 0), ("__f_path", path, 0)]);
    let inner = b.structure("", 24, &[("f_before", int, 0), ("", union, 64)]);
    // Named members are not searched: C would not find `f_path` there.
    let other = b.structure("other", 16, &[("hidden", int, 0)]);
    b.structure("file", 64, &[("f_lock", int, 0), ("f_other", other, 64), ("", inner, 192)]);
    let btf = parse(b);
    let found = Field { embedded: true, ..field(24 + 8, 16) };
    assert_eq!(btf.field("file", "f_path").unwrap(), Some(found));
    assert_eq!(btf.field("file", "hidden").unwrap(), None);
}

#[test]
fn bitfields_are_seen_in_both_encodings() {
    let mut b = Builder::new();
    let int = b.int("int", 4);
    b.structure("new", 4, &[("bits", int, 3 << 24), ("rest", int, 5 << 24 | 0b11)]);
    let odd = b.push("int", (kind::INT, false), 0, 4, &[3]);
    b.structure("old", 4, &[("bits", odd, 0)]);
    let btf = parse(b);
    for (structure, name, offset_bits) in
        [("new", "bits", 0), ("new", "rest", 3), ("old", "bits", 0)]
    {
        let found = btf.field(structure, name).unwrap().unwrap();
        assert!(found.bitfield, "{structure}.{name}");
        assert_eq!(found.offset_bits, offset_bits);
    }
}

#[test]
fn prototypes() {
    let mut b = Builder::new();
    let path = b.structure("path", 16, &[]);
    let held = b.constant(path);
    let pointer = b.pointer(held);
    let int = b.int("unsigned int", 4);
    let mode = b.typedef("umode_t", int);
    let pointers = b.pointer(pointer);
    let any = b.pointer(0);
    b.function("bpf_lsm_x", &[("dir", pointer), ("mode", mode), ("", pointers), ("any", any)]);
    b.function("bpf_lsm_none", &[]);
    let btf = parse(b);
    let names: Vec<(String, String)> = btf
        .function("bpf_lsm_x")
        .unwrap()
        .unwrap()
        .into_iter()
        .map(|param| (param.name, param.type_name))
        .collect();
    let expected =
        [("dir", "struct path *"), ("mode", "umode_t"), ("", "struct path **"), ("any", "void *")];
    assert_eq!(names, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    assert_eq!(btf.function("bpf_lsm_none").unwrap(), Some(vec![]));
    assert_eq!(btf.function("bpf_lsm").unwrap(), None);
}

#[test]
fn namesakes_must_agree() {
    let mut b = Builder::new();
    let int = b.int("int", 4);
    b.structure("path", 8, &[("dentry", int, 0), ("mnt", int, 32)]);
    b.structure("path", 8, &[("dentry", int, 0)]);
    let btf = parse(b);
    assert_eq!(btf.field("path", "dentry").unwrap(), Some(field(0, 4)));
    assert!(matches!(btf.field("path", "mnt"), Err(BtfError::Ambiguous { .. })));
}

#[test]
fn circles_end() {
    let mut b = Builder::new();
    b.push("", (kind::CONST, false), 0, 1, &[]);
    b.structure("a", 4, &[("x", 1, 0)]);
    // Structure 3 holds itself, 64 times.
    b.structure("b", 4, &[("", 3, 0); 64]);
    let array = b.array(4, 1);
    b.structure("c", 4, &[("x", array, 0)]);
    b.structure("d", 4, &[("x", 77, 0)]);
    b.push("f", (kind::FUNC, false), 1, 1, &[]);
    let btf = parse(b);
    for structure in ["a", "b", "c"] {
        assert!(matches!(btf.field(structure, "x"), Err(BtfError::Endless { .. })), "{structure}");
    }
    assert!(matches!(btf.field("d", "x"), Err(BtfError::NoType { id: 77 })));
    assert!(matches!(btf.function("f"), Err(BtfError::Malformed { .. })));
}

#[test]
fn unknown_kinds_are_skipped_only_where_the_kernel_gives_their_size() {
    let make = |layout: &[(u8, u8)]| {
        let mut b = Builder::new();
        let int = b.int("int", 4);
        b.push("new", (21, false), 2, 0, &[7, 8, 9]);
        b.structure("file", 4, &[("f_mode", int, 0)]);
        b.layout(layout);
        Btf::parse(b.finish())
    };
    let mut kinds = vec![(0, 0); 22];
    assert!(matches!(make(&[]), Err(BtfError::UnknownKind { kind: 21, id: 2 })));
    assert!(matches!(make(&kinds[..21]), Err(BtfError::UnknownKind { .. })));
    kinds[21] = (4, 4);
    assert_eq!(make(&kinds).unwrap().field("file", "f_mode").unwrap(), Some(field(0, 4)));
}

#[test]
fn broken_headers_are_refused() {
    let whole = sample();
    for (at, byte) in [(0, 0), (2, 2), (3, 1), (4, 8), (12, 0xff), (15, 0xff), (20, 0xff)] {
        let mut data = whole.clone();
        data[at] = byte;
        assert!(matches!(Btf::parse(data), Err(BtfError::Malformed { .. })), "byte {at}");
    }
    for length in 0..whole.len() {
        assert!(Btf::parse(whole[..length].to_vec()).is_err(), "{length} bytes");
    }
}

/// A file with every kind.
fn sample() -> Vec<u8> {
    let mut b = Builder::new();
    let int = b.int("int", 4);
    let pointer = b.pointer(int);
    let array = b.array(pointer, 4);
    let union = b.union("", 32, &[("u_a", int, 0), ("u_b", array, 0)]);
    b.structure(
        "file",
        48,
        &[("f_mode", int, 0), ("", union, 64), ("bit", int, 1 << 24 | 40 << 3)],
    );
    b.push("e", (kind::ENUM, false), 1, 4, &[0, 1]);
    b.push("fwd", (kind::FWD, true), 0, 0, &[]);
    b.push("", (kind::RESTRICT, false), 0, pointer, &[]);
    b.push("var", (kind::VAR, false), 0, int, &[1]);
    b.push(".data", (kind::DATASEC, false), 1, 4, &[int, 0, 4]);
    b.push("double", (kind::FLOAT, false), 0, 8, &[]);
    b.push("tag", (kind::DECL_TAG, false), 0, int, &[u32::MAX]);
    b.push("user", (kind::TYPE_TAG, false), 0, int, &[]);
    b.push("e64", (kind::ENUM64, false), 1, 8, &[0, 1, 0]);
    b.function("bpf_lsm_file_open", &[("file", pointer)]);
    b.finish()
}

/// Asks everything; only panics can make it fail.
fn interrogate(data: Vec<u8>) {
    if let Ok(btf) = Btf::parse(data) {
        for name in ["f_mode", "u_a", "u_b", "bit", "none", ""] {
            let _ = btf.field("file", name);
            let _ = btf.field("", name);
        }
        let _ = btf.function("bpf_lsm_file_open");
        let _ = btf.function("");
    }
}

/// A generated member and where the model says its fields lie.
#[derive(Clone, Debug)]
enum Part {
    Plain { bytes: u32, wraps: Vec<u8> },
    Pointer,
    Array { bytes: u32, length: u32 },
    Anonymous { union: bool, parts: Vec<Part> },
}

fn part() -> impl Strategy<Value = Part> {
    let bytes = prop_oneof![Just(1_u32), Just(2), Just(4), Just(8)];
    let leaf = prop_oneof![
        (bytes.clone(), prop::collection::vec(0_u8..3, 0..6))
            .prop_map(|(bytes, wraps)| Part::Plain { bytes, wraps }),
        Just(Part::Pointer),
        (bytes, 0_u32..9).prop_map(|(bytes, length)| Part::Array { bytes, length }),
    ];
    leaf.prop_recursive(4, 32, 5, |part| {
        (any::<bool>(), prop::collection::vec(part, 1..5))
            .prop_map(|(union, parts)| Part::Anonymous { union, parts })
    })
}

/// Builds the type of `part`; collects (name, offset, size) of its fields; its (id, size).
fn build(part: &Part, b: &mut Builder, base: u32, out: &mut Vec<(String, u32, u32)>) -> (u32, u32) {
    match part {
        Part::Plain { bytes, wraps } => {
            let mut id = b.int("int", *bytes);
            for wrap in wraps {
                id = match wrap {
                    0 => b.typedef("t", id),
                    1 => b.constant(id),
                    _ => b.volatile(id),
                };
            }
            (id, *bytes)
        }
        Part::Pointer => (b.pointer(0), 8),
        Part::Array { bytes, length } => {
            let of = b.int("int", *bytes);
            (b.array(of, *length), bytes * length)
        }
        Part::Anonymous { union, parts } => {
            let (members, size) = build_all(parts, *union, b, base, out);
            let members: Vec<Member<'_>> =
                members.iter().map(|(name, id, place)| (name.as_str(), *id, *place)).collect();
            let id =
                if *union { b.union("", size, &members) } else { b.structure("", size, &members) };
            (id, size)
        }
    }
}

fn build_all(
    parts: &[Part],
    union: bool,
    b: &mut Builder,
    base: u32,
    out: &mut Vec<(String, u32, u32)>,
) -> (Vec<(String, u32, u32)>, u32) {
    let (mut members, mut offset, mut largest) = (Vec::new(), 0, 0);
    for part in parts {
        let at = if union { 0 } else { offset };
        let (id, size) = build(part, b, base + at, out);
        let name = if matches!(part, Part::Anonymous { .. }) {
            String::new()
        } else {
            let name = format!("field{}", out.len());
            out.push((name.clone(), base + at, size));
            name
        };
        members.push((name, id, at * 8));
        offset += size;
        largest = largest.max(size);
    }
    (members, if union { largest } else { offset })
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(data in prop::collection::vec(any::<u8>(), 0..512)) {
        interrogate(data);
    }

    #[test]
    fn arbitrary_types_never_panic(words in prop::collection::vec(prop_oneof![0_u32..40, any::<u32>()], 0..128)) {
        let mut data = 0xeb9f_u16.to_ne_bytes().to_vec();
        data.extend([1, 0]);
        let types = words.len() as u32 * 4;
        data.extend([24, 0, types, types, 6].iter().flat_map(|word: &u32| word.to_ne_bytes()));
        data.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        data.extend(*b"\0file\0");
        interrogate(data);
    }

    #[test]
    fn mutated_files_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), cut in any::<Option<prop::sample::Index>>()) {
        let mut data = sample();
        for (at, byte) in changes {
            let at = at.index(data.len());
            data[at] = byte;
        }
        if let Some(cut) = cut {
            data.truncate(cut.index(data.len()));
        }
        interrogate(data);
    }

    #[test]
    fn generated_structures_round_trip(parts in prop::collection::vec(part(), 1..8)) {
        let mut b = Builder::new();
        let mut expected = Vec::new();
        let (members, size) = build_all(&parts, false, &mut b, 0, &mut expected);
        let members: Vec<Member<'_>> =
            members.iter().map(|(name, id, place)| (name.as_str(), *id, *place)).collect();
        b.structure("file", size, &members);
        let btf = parse(b);
        for (name, offset, size) in expected {
            prop_assert_eq!(btf.field("file", &name).unwrap(), Some(field(offset, size)));
        }
    }
}

/// Real kernels: the running one, and every file in the directory that `SANDBOX_TEST_BTF` names.
pub(crate) fn kernels() -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from(KERNEL)];
    if let Some(directory) = std::env::var_os("SANDBOX_TEST_BTF") {
        let entries = std::fs::read_dir(directory).expect("SANDBOX_TEST_BTF is a directory");
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    files.retain(|file| {
        let there = file.exists();
        if !there {
            eprintln!("skipped: no {} on this machine", file.display());
        }
        there
    });
    files
}

/// The oracle's offset, in bits, of a field: anonymous members searched as C does.
fn oracle_offset(oracle: &Oracle, ty: &OracleType, name: &str) -> Option<u32> {
    let (OracleType::Struct(outer) | OracleType::Union(outer)) = ty else { return None };
    outer.members.iter().find_map(|member| {
        let found = oracle.resolve_name(member).unwrap();
        if found == name {
            return Some(member.bit_offset());
        }
        let inner = oracle.resolve_chained_type(member).unwrap();
        let inner = found.is_empty().then_some(inner)?;
        Some(member.bit_offset() + oracle_offset(oracle, &inner, name)?)
    })
}

#[test]
fn agrees_with_another_reader_on_real_kernels() {
    for file in kernels() {
        let data = std::fs::read(&file).unwrap();
        let oracle = Oracle::from_bytes(&data).unwrap();
        let btf = Btf::parse(data).unwrap();
        assert_eq!(btf.len() as u32, oracle.base().type_id_range().1);
        for spec in FIELDS.to_array() {
            let expected: Vec<Option<u32>> = oracle
                .resolve_types_by_name(spec.structure)
                .unwrap()
                .iter()
                .filter(|ty| matches!(ty, OracleType::Struct(_)))
                .map(|ty| oracle_offset(&oracle, ty, spec.names[0]))
                .collect();
            let found = btf.field(spec.structure, spec.names[0]).unwrap();
            assert_eq!(
                expected,
                [found.map(|field| field.offset_bits)],
                "{}: {spec:?}",
                file.display()
            );
        }
        for name in ["vfs_open", "security_file_open", "bpf_lsm_path_rename", "no_such_function"] {
            let expected = oracle.resolve_types_by_name(name).ok().and_then(|types| {
                types.iter().find_map(|ty| {
                    let OracleType::Func(func) = ty else { return None };
                    let proto = oracle.resolve_chained_type(func).unwrap();
                    let OracleType::FuncProto(proto) = proto else { return None };
                    Some(proto.parameters.iter().map(|p| oracle.resolve_name(p).unwrap()).collect())
                })
            });
            let found: Option<Vec<String>> = btf
                .function(name)
                .unwrap()
                .map(|params| params.into_iter().map(|param| param.name).collect());
            assert_eq!(found, expected, "{}: {name}", file.display());
        }
    }
}
