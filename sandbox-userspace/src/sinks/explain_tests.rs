//! Exact texts: people and programs read them.

use super::*;
use sandbox_common::path::kernel_dev;
use std::net::Ipv6Addr;

fn explainer() -> Explainer {
    let rule = |id, key: &str, text: &str, line| Rule {
        id,
        key: key.into(),
        text: text.into(),
        layer: "preset".into(),
        file: "preset:default".into(),
        line,
        column: 5,
    };
    let rules = vec![
        rule(3, "files.read.deny", "~/.ssh/**", 12),
        rule(4, "files.read.deny", "~/.netrc", 13),
        rule(5, "files.read.deny", "**/.env{,.local}", 14),
        rule(6, "files.read.deny", "/etc/{shadow,gshadow}", 15),
        rule(9, "files.write.deny", "${WORKSPACE}/.git/config", 20),
    ];
    let show = |dev, names: &[Vec<u8>]| {
        if dev != kernel_dev(8, 1) {
            return None;
        }
        let mut path = PathBuf::from("/");
        path.extend(names.iter().map(|name| std::ffi::OsStr::from_bytes(name)));
        Some(path)
    };
    let rules = Arc::new(RwLock::new(rules));
    Explainer::new("0123abcd".parse().unwrap(), rules, Mode::Enforce, Box::new(show))
}

fn header(hook: Hook, reason: Reason, access: Access, rule: u32) -> Header {
    let mut comm = [0; 16];
    comm[..3].copy_from_slice(b"cat");
    Header {
        version: 1,
        kind: 1,
        hook: hook as u8,
        reason: reason as u8,
        access: access.bits(),
        session: 1,
        rule,
        mode: 1,
        time: 0,
        cgroup: 7,
        pid: 123,
        tid: 124,
        uid: 1000,
        comm,
    }
}

fn object(path: &str) -> Object {
    Object {
        dev: kernel_dev(8, 1),
        rdev: 0,
        mode: 0o100_644,
        components: path.split('/').filter(|n| !n.is_empty()).map(Into::into).collect(),
        truncated: false,
    }
}

fn path_record(header: Header, path: &str) -> Record {
    Record::Path { header, object: object(path) }
}

fn message(record: &Record) -> String {
    explainer().explain(record).message
}

#[test]
fn what_was_allowed_is_noted() {
    let of = |hook, access| header(hook, Reason::Allowed, access, 0);
    let write = path_record(of(Hook::PathMknod, Access::CREATE), "/home/ann/src/x");
    assert!(write.is_note());
    let audit = explainer().note(&write);
    assert_eq!(audit.message, "noted creation of /home/ann/src/x by cat[123]");
    let json = serde_json::to_value(crate::sinks::Event::Audit(Box::new(audit))).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "type": "audit", "time": json["time"], "session": "0123abcd", "class": "write",
            "hook": "path_mknod", "access": ["create"], "pid": 123, "tid": 124, "uid": 1000,
            "comm": "cat", "object": {"kind": "path", "path": "/home/ann/src/x", "exists": true},
            "message": "noted creation of /home/ann/src/x by cat[123]",
        })
    );
    let exec = path_record(of(Hook::BprmCheckSecurity, Access::EXECUTE), "/usr/bin/git");
    let audit = explainer().note(&exec);
    assert_eq!(
        (audit.class, audit.message.as_str()),
        ("exec", "noted execution of /usr/bin/git by cat[123]")
    );
    let net = NetPayload {
        family: 2,
        port: 80,
        protocol: 6,
        pad: 0,
        address: [127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    };
    let connect = Record::Net { header: of(Hook::Connect4, Access::CONNECT), net };
    let audit = explainer().note(&connect);
    assert_eq!(
        (audit.class, audit.message.as_str()),
        ("connect", "noted connection to 127.0.0.1:80/tcp by cat[123]")
    );
    let denied = path_record(header(Hook::FileOpen, Reason::Rule, Access::READ, 3), "/x");
    assert!(!denied.is_note());
}

#[test]
fn a_rule_is_named_with_its_place() {
    let header = header(Hook::FileOpen, Reason::Rule, Access::READ, 3);
    let denial = explainer().explain(&path_record(header, "/root/.ssh/id_ed25519"));
    assert_eq!(
        denial.message,
        r#"denied read of /root/.ssh/id_ed25519 by cat[123]: files.read.deny "~/.ssh/**" (preset:default:12)"#
    );
    let mut json = serde_json::to_value(&denial).unwrap();
    assert!(json["time"].take().as_str().is_some());
    assert_eq!(
        json.to_string(),
        r#"{"access":["read"],"comm":"cat","hint":{"add":"/root/.ssh/id_ed25519","key":"files.read.allow"},"hook":"file_open","message":"denied read of /root/.ssh/id_ed25519 by cat[123]: files.read.deny \"~/.ssh/**\" (preset:default:12)","object":{"exists":true,"kind":"path","path":"/root/.ssh/id_ed25519"},"pid":123,"reason":"rule","rule":{"column":5,"file":"preset:default","id":3,"key":"files.read.deny","layer":"preset","line":12,"text":"~/.ssh/**"},"session":"0123abcd","tid":124,"time":null,"uid":1000,"verdict":"denied"}"#
    );
}

#[test]
fn no_rule_and_several_accesses() {
    let header = header(Hook::PathRename, Reason::Default, Access::CREATE | Access::DELETE, 0);
    let denial = explainer().explain(&path_record(header, "/etc/passwd"));
    assert_eq!(
        denial.message,
        "denied creation and deletion of /etc/passwd by cat[123]: no rule allows it"
    );
    assert_eq!(denial.access, ["create", "delete"]);
    let hint = denial.hint.unwrap();
    assert_eq!((&*hint.key, &*hint.add), ("files.write.allow", "/etc/passwd"));
    assert_eq!(denial.rule, None);
}

#[test]
fn what_a_pattern_closes_is_opened_by_its_path() {
    let header = header(Hook::FileOpen, Reason::Rule, Access::READ, 5);
    let denial = explainer().explain(&path_record(header, "/w/[a]/.env"));
    assert_eq!(denial.hint.unwrap().add, r"/w/\[a\]/.env");
    assert!(denial.message.ends_with(r#"files.read.deny "**/.env{,.local}" (preset:default:14)"#));
}

#[test]
fn running_has_a_list_of_its_own() {
    let header = header(Hook::FileOpen, Reason::Default, Access::EXECUTE, 0);
    let denial = explainer().explain(&path_record(header, "/w/x"));
    assert_eq!(denial.hint.unwrap().key, "files.exec.allow");
}

#[test]
fn no_hint_where_it_would_not_help() {
    for (path, rule, reason) in [
        ("/home/ann/.netrc", 4, Reason::Rule),
        ("/etc/gshadow", 6, Reason::Rule),
        ("/home/ann/src/.git/config", 9, Reason::Rule),
        ("/etc/x", 0, Reason::Disconnected),
    ] {
        let header = header(Hook::FileOpen, reason, Access::READ, rule);
        assert_eq!(explainer().explain(&path_record(header, path)).hint, None, "{path}");
    }
}

#[test]
fn addresses() {
    let mut address = [0; 16];
    address[..4].copy_from_slice(&[127, 0, 0, 1]);
    let mut net = NetPayload { family: 2, port: 80, protocol: 6, pad: 0, address };
    let header = header(Hook::Connect4, Reason::Default, Access::CONNECT, 0);
    let denial = explainer().explain(&Record::Net { header, net });
    assert_eq!(
        denial.message,
        "denied connection to 127.0.0.1:80/tcp by cat[123]: no rule allows it"
    );
    assert_eq!(denial.hint.unwrap().add, "127.0.0.1:80/tcp");
    let object = serde_json::to_string(&denial.object).unwrap();
    assert_eq!(object, r#"{"kind":"address","address":"127.0.0.1","port":80,"protocol":"tcp"}"#);
    net.family = 10;
    net.address = "2001:db8::1".parse::<Ipv6Addr>().unwrap().octets();
    net.protocol = 17;
    let v6 = message(&Record::Net { header, net });
    assert!(v6.starts_with("denied connection to [2001:db8::1]:80/udp by"), "{v6}");
    (net.family, net.protocol) = (99, 132);
    let odd = message(&Record::Net { header, net });
    assert!(odd.starts_with("denied connection to family 99:80 protocol 132 by"), "{odd}");
}

#[test]
fn devices_and_tasks() {
    let mut disk = object("/dev/sda");
    (disk.rdev, disk.mode) = (kernel_dev(8, 0), 0o060_660);
    let header1 = header(Hook::FileOpen, Reason::Device, Access::WRITE, 0);
    let denial = explainer().explain(&Record::Path { header: header1, object: disk });
    assert_eq!(
        denial.message,
        "denied write of /dev/sda (device 8:0) by cat[123]: the device is not on the list"
    );
    assert_eq!(
        serde_json::to_string(&denial.object).unwrap(),
        r#"{"kind":"device","path":"/dev/sda","major":8,"minor":0}"#
    );
    let header2 = header(Hook::TaskAlloc, Reason::IntoCgroup, Access::empty(), 0);
    let denial = explainer().explain(&Record::Task { header: header2 });
    assert_eq!(
        denial.message,
        "denied a new process by cat[123]: a child may not be born in another cgroup"
    );
    assert_eq!(serde_json::to_string(&denial.object).unwrap(), r#"{"kind":"task"}"#);
}

#[test]
fn other_processes_and_the_kernel() {
    let process = ProcessPayload { pid: 77, request: 9, comm: *b"sh\x1b\0xxxxxxxxxxxx" };
    let kill = header(Hook::TaskKill, Reason::Outsider, Access::SIGNAL, 0);
    let denial = explainer().explain(&Record::Process { header: kill, process });
    assert_eq!(
        denial.message,
        r"denied signal 9 to sh\u{1b}[77] by cat[123]: that process is not of the session"
    );
    assert_eq!(
        serde_json::to_string(&denial.object).unwrap(),
        r#"{"kind":"process","pid":77,"comm":"sh\u001b","request":9}"#
    );
    let trace = header(Hook::PtraceAccessCheck, Reason::Outsider, Access::TRACE, 0);
    let text = message(&Record::Process { header: trace, process });
    assert!(text.starts_with(r"denied look into sh\u{1b}[77] by"), "{text}");
    let mount = header(Hook::SbMount, Reason::Never, Access::MOUNT, 0);
    assert_eq!(
        message(&Record::Task { header: mount }),
        "denied mount (sb_mount) by cat[123]: no session may do this"
    );
}

#[test]
fn audit_is_told_apart() {
    let mut header = header(Hook::FileOpen, Reason::Default, Access::WRITE, 0);
    header.mode = Mode::Audit as u32;
    let denial = explainer().explain(&path_record(header, "/x"));
    assert_eq!(denial.message, "would deny write of /x by cat[123]: no rule allows it");
    assert_eq!(denial.verdict, Verdict::Audited);
}

#[test]
fn what_has_no_name_is_a_number() {
    let mut header = header(Hook::FileOpen, Reason::Rule, Access::READ, 77);
    (header.hook, header.access) = (200, 1 | 1 << 30);
    let denial = explainer().explain(&path_record(header, "/x"));
    assert_eq!(denial.message, "denied read and 0x40000000 of /x by cat[123]: rule 77");
    assert_eq!((&*denial.hook, &denial.access[1]), ("200", &"0x40000000".to_owned()));
    assert_eq!(serde_json::to_string(&denial.rule).unwrap(), r#"{"id":77}"#);
    header.reason = 201;
    let denial = explainer().explain(&path_record(header, "/x"));
    assert!(denial.message.ends_with(": reason 201: rule 77"), "{}", denial.message);
    assert_eq!(denial.reason, "201");
}

#[test]
fn what_is_not_mounted_is_shown_from_its_file_system() {
    let header = header(Hook::FileOpen, Reason::UnknownFilesystem, Access::WRITE, 0);
    let mut hidden = object("/a/b");
    hidden.dev = kernel_dev(0, 300);
    let text = message(&Record::Path { header, object: hidden.clone() });
    assert!(text.starts_with("denied write of [0:300]/a/b by"), "{text}");
    hidden.components.clear();
    let text = message(&Record::Path { header, object: hidden });
    assert!(text.starts_with("denied write of [0:300]/ by"), "{text}");
    let mut cut = object("/a/b");
    cut.truncated = true;
    let text = message(&Record::Path { header, object: cut });
    assert!(text.starts_with("denied write of [8:1]/.../a/b by"), "{text}");
}

#[test]
fn names_cannot_command_the_terminal() {
    let mut header = header(Hook::FileOpen, Reason::Default, Access::WRITE, 0);
    header.comm = *b"\x1b[2J\n\xff\0unseen!!!";
    let mut file = object("/tmp");
    file.components.push(b"\x1b]0;x\x07\xfe".to_vec());
    let denial = explainer().explain(&Record::Path { header, object: file });
    assert_eq!(
        denial.message,
        r"denied write of /tmp/\u{1b}]0;x\u{7}\xfe by \u{1b}[2J\n\xff[123]: no rule allows it"
    );
}

#[test]
fn times_are_utc() {
    let mut explainer = explainer();
    explainer.boot = SignedDuration::from_secs(1_796_000_000);
    assert_eq!(explainer.time(1_500_000_000), "2026-11-30T00:53:21.5Z");
    explainer.time(u64::MAX);
}
