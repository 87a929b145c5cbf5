use super::*;
use crate::kernel::btf::builder::Builder;
use crate::kernel::btf::tests::kernels;

/// Structures of a kernel like 7.3: what the programs need, and `f_path`, `d_name` in unions.
/// `change` may alter a member before it is built.
fn kernel(change: impl Fn(&str, &mut (&'static str, u32, u32))) -> Btf {
    let mut b = Builder::new();
    let char_ = b.int("char", 1);
    let short = b.int("unsigned short", 2);
    let int = b.int("unsigned int", 4);
    let long = b.int("unsigned long", 8);
    let pointer = b.pointer(char_);
    let add = |b: &mut Builder, name, bytes, mut members: Vec<(&'static str, u32, u32)>| {
        for member in &mut members {
            change(name, member);
        }
        b.structure(name, bytes, &members)
    };
    let path = add(&mut b, "path", 16, vec![("mnt", pointer, 0), ("dentry", pointer, 64)]);
    let qstr = add(&mut b, "qstr", 16, vec![("len", int, 32), ("name", pointer, 64)]);
    let held = b.constant(path);
    let union = b.union("", 16, &[("f_path", held, 0), ("__f_path", path, 0)]);
    let files =
        vec![("f_lock", int, 0), ("f_mode", int, 32), ("f_flags", int, 64), ("", union, 128)];
    add(&mut b, "file", 64, files);
    let held = b.constant(qstr);
    let union = b.union("", 16, &[("__d_name", qstr, 0), ("d_name", held, 0)]);
    let dentries = vec![
        ("d_parent", pointer, 64),
        ("", union, 128),
        ("d_inode", pointer, 256),
        ("d_sb", pointer, 320),
    ];
    add(&mut b, "dentry", 64, dentries);
    add(&mut b, "inode", 64, vec![("i_mode", short, 0), ("i_rdev", int, 64), ("i_ino", long, 128)]);
    let supers = vec![("s_dev", int, 128), ("s_flags", long, 192), ("s_root", pointer, 256)];
    add(&mut b, "super_block", 64, supers);
    Btf::parse(b.finish()).unwrap()
}

#[test]
fn every_field_is_found() {
    let layout = read(&kernel(|_, _| {})).unwrap();
    let expected = KernelLayout {
        file_path: 16,
        file_mode: 4,
        file_flags: 8,
        path_dentry: 8,
        dentry_parent: 8,
        dentry_name: 16,
        dentry_inode: 32,
        dentry_sb: 40,
        qstr_len: 4,
        qstr_name: 8,
        inode_mode: 0,
        inode_rdev: 8,
        inode_ino: 16,
        sb_dev: 16,
        sb_flags: 24,
        sb_root: 32,
    };
    assert_eq!(layout, expected);
}

#[test]
fn all_faults_are_told_at_once() {
    let btf = kernel(|structure, member| match (structure, member.0) {
        ("file", "f_flags") => member.0 = "f_oflags",
        ("inode", "i_mode") => member.1 = 3,
        ("dentry", "d_sb") => member.2 |= 5 << 24,
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
    let btf = kernel(|_, member| {
        if member.0 == "f_lock" {
            *member = ("f_path", 5, 0);
        }
    });
    let error = read(&btf).unwrap_err();
    assert!(matches!(&error.faults[..], [Fault::NotEmbedded { field }] if field == "file.f_path"));
}

#[test]
fn other_names_are_tried_and_optional_fields_may_be_absent() {
    let btf = kernel(|_, _| {});
    let spec = |names, required| FieldSpec { structure: "super_block", names, size: 4, required };
    assert_eq!(offset(&btf, &spec(&["s_device", "s_dev"], true)).unwrap(), 16);
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
