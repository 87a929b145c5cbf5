use super::*;
use crate::kernel::btf::builder::Builder;
use crate::kernel::btf::tests::kernels;

/// A kernel that has every field of [`FIELDS`], and where they are. Embedded structures lie in
/// anonymous unions, as `f_path` and `d_name` do since 7.x. `change` may alter a member, given its
/// name, type and place, before it is built.
fn kernel(change: impl Fn(&mut (&'static str, u32, u32))) -> (Btf, [u32; COUNT]) {
    let mut b = Builder::new();
    let sizes = [1, 2, 4, 8].map(|bytes| (bytes, b.int("int", bytes)));
    let byte = sizes[0].1;
    let inner = b.structure("inner", 16, &[("x", byte, 0)]);
    let held = b.constant(inner);
    let fields = FIELDS.to_array();
    let (mut expected, mut structures) = ([ABSENT; COUNT], Vec::<&str>::new());
    for spec in &fields {
        if !structures.contains(&spec.structure) {
            structures.push(spec.structure);
        }
    }
    for structure in structures {
        let mut members = vec![("first", byte, 0)];
        let mine = fields.iter().zip(&mut expected).filter(|(spec, _)| spec.structure == structure);
        for (place, (spec, expected)) in mine.enumerate() {
            *expected = 16 * (u32::try_from(place).unwrap() + 1);
            let known = sizes.iter().find(|(bytes, _)| *bytes == spec.size);
            let id = match (spec.size, known) {
                (0, _) => held,
                (_, Some((_, id))) => *id,
                (bytes, None) => b.array(byte, bytes),
            };
            let mut member = (spec.names[0], id, *expected * 8);
            change(&mut member);
            if spec.size == 0 && member.1 == held {
                let union = b.union("", 16, &[("__other", inner, 0), (member.0, member.1, 0)]);
                member = ("", union, member.2);
            }
            members.push(member);
        }
        b.structure(structure, 1024, &members);
    }
    (Btf::parse(b.finish()).unwrap(), expected)
}

#[test]
fn every_field_is_found() {
    let (btf, expected) = kernel(|_| {});
    assert_eq!(read(&btf).unwrap(), KernelLayout::from_array(expected));
}

#[test]
fn all_faults_are_told_at_once() {
    let (btf, _) = kernel(|member| match member.0 {
        "f_flags" => member.0 = "f_oflags",
        // The integer of four bytes.
        "i_mode" => member.1 = 3,
        "d_sb" => member.2 |= 5 << 24,
        _ => {}
    });
    let error = read(&btf).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.faults.len(), 3, "{text}");
    for part in [
        "file.f_flags does not exist",
        "dentry.d_sb is a bit field",
        "inode.i_mode has 4 bytes where 2 were expected",
        "Nothing is enforced",
        "uname -r",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn an_embedded_structure_must_be_one() {
    let (btf, _) = kernel(|member| {
        if member.0 == "f_path" {
            member.1 = 4;
        }
    });
    let error = read(&btf).unwrap_err();
    assert!(matches!(&error.faults[..], [Fault::NotEmbedded { field }] if field == "file.f_path"));
}

#[test]
fn other_names_are_tried_and_optional_fields_may_be_absent() {
    let (btf, _) = kernel(|_| {});
    let spec = |names, required| FieldSpec { structure: "super_block", names, size: 4, required };
    assert_ne!(offset(&btf, &spec(&["s_device", "s_dev"], true)).unwrap(), ABSENT);
    assert_eq!(offset(&btf, &spec(&["s_none"], false)).unwrap(), ABSENT);
    assert!(matches!(offset(&btf, &spec(&["s_none"], true)), Err(Fault::Missing { .. })));
    // Present but different is a fault, optional or not.
    assert!(matches!(offset(&btf, &spec(&["s_root"], false)), Err(Fault::Size { .. })));
}

#[test]
fn real_kernels_have_every_field() {
    for file in kernels() {
        let layout = read(&Btf::read(&file).unwrap());
        assert!(layout.is_ok(), "{}: {}", file.display(), layout.unwrap_err());
    }
}
