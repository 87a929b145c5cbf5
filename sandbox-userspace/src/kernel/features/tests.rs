use super::*;
use crate::engine::Way;
use std::fs;
use std::path::Path;

const MOUNTS: &str = "\
27 1 254:1 / / rw,relatime - ext4 /dev/vda rw
22 27 0:21 / /proc rw,relatime - proc proc rw
31 27 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:4 master:2 - cgroup cgroup rw,cpu
41 31 0:38 / /sys/fs/cgroup/uni\\040fied rw,relatime shared:9 - cgroup2 cgroup2 rw
";

fn machine(lsm: Option<&str>, mountinfo: Option<&str>) -> (tempfile::TempDir, Paths) {
    let dir = tempfile::tempdir().unwrap();
    let paths = Paths {
        btf: crate::kernel::btf::KERNEL.into(),
        securityfs: dir.path().to_path_buf(),
        mountinfo: dir.path().join("mountinfo"),
        bpffs: dir.path().join("bpf"),
    };
    if let Some(lsm) = lsm {
        fs::write(dir.path().join("lsm"), lsm).unwrap();
    }
    if let Some(text) = mountinfo {
        fs::write(&paths.mountinfo, text).unwrap();
    }
    (dir, paths)
}

fn missing(paths: Paths) -> Vec<Missing> {
    Survey::take(paths).facts().map(|_| ()).unwrap_err()
}

#[test]
fn cgroup_v2_is_found_where_it_is() {
    let (_dir, paths) = machine(None, Some(MOUNTS));
    let survey = Survey::take(paths);
    assert_eq!(survey.cgroup2.unwrap().unwrap(), Path::new("/sys/fs/cgroup/uni fied"));
}

#[test]
fn everything_missing_is_told_in_order() {
    let (_dir, mut paths) = machine(None, Some("1 0 0:1 / / rw - tmpfs tmpfs rw\n"));
    paths.btf = paths.securityfs.join("none");
    let missing: Vec<Missing> =
        missing(paths).into_iter().filter(|m| !matches!(m, Missing::Root)).collect();
    assert!(
        matches!(
            &missing[..],
            [
                Missing::Btf(BtfError::Read { .. }),
                Missing::LsmsUnknown { .. },
                Missing::Cgroup2 { version1: false },
                Missing::Bpffs { .. },
            ]
        ),
        "{missing:?}"
    );
    for one in &missing {
        assert!(!one.to_string().is_empty() && !one.mend().is_empty());
    }
    assert!(missing[1].mend().contains("mount -t securityfs securityfs /"));
}

#[test]
fn an_unreadable_mount_table_is_its_own_reason() {
    let (_dir, paths) = machine(Some("bpf"), None);
    assert!(missing(paths).iter().any(|m| matches!(m, Missing::MountTable(_))));
}

#[test]
fn a_kernel_that_hides_its_memory_is_told_apart() {
    for (modes, hidden) in [
        ("none integrity [confidentiality]\n", true),
        ("none [integrity] confidentiality\n", false),
        ("[none] integrity confidentiality\n", false),
    ] {
        let (dir, paths) = machine(Some("bpf"), Some(MOUNTS));
        fs::write(dir.path().join("lockdown"), modes).unwrap();
        let found = missing(paths);
        let told = found.iter().find(|one| matches!(one, Missing::Confidential));
        assert_eq!(told.is_some(), hidden, "{modes}");
        assert!(told.is_none_or(|one| one.mend().contains("lockdown=integrity")));
    }
}

#[test]
fn only_version_1_of_cgroups_is_told() {
    let table = "1 0 0:1 / / rw - tmpfs tmpfs rw\n2 1 0:2 / /sys/fs/cgroup rw - cgroup cpu rw\n";
    let (_dir, paths) = machine(Some("bpf"), Some(table));
    let found = missing(paths);
    let one = found.iter().find(|one| matches!(one, Missing::Cgroup2 { version1: true })).unwrap();
    assert!(one.mend().contains("systemd.unified_cgroup_hierarchy=1"));
}

#[test]
fn bpf_must_be_a_whole_name_in_the_list() {
    for (list, active) in
        [("lockdown,bpf\n", true), ("bpf", true), ("lockdown,xbpf", false), ("", false)]
    {
        let (_dir, paths) = machine(Some(list), Some(MOUNTS));
        assert_eq!(Survey::take(paths).way() == Way::BpfLsm, active, "{list:?}");
    }
}

#[test]
fn the_top_mount_at_a_place_counts() {
    let bpf = |kinds: &[&str]| {
        let (dir, paths) = machine(None, None);
        let at = paths.bpffs.display().to_string();
        let lines = kinds.iter().map(|kind| format!("\n2 1 0:2 / {at} rw - {kind} x rw"));
        let text = format!("1 0 0:1 / / rw - tmpfs x rw{}", lines.collect::<String>());
        fs::write(&paths.mountinfo, text).unwrap();
        let survey = Survey::take(paths);
        drop(dir);
        survey.bpffs.is_some()
    };
    assert!(bpf(&["bpf"]));
    assert!(bpf(&["tmpfs", "bpf"]));
    assert!(!bpf(&["bpf", "tmpfs"]));
    assert!(!bpf(&[]));
}
