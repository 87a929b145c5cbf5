use super::*;

fn diagnosis() -> Diagnosis {
    Diagnosis {
        r#type: "doctor",
        kernel: "6.1.0".into(),
        btf: BtfSeen { readable: true, fields: COUNT, of: COUNT },
        lsms: Some(vec!["lockdown".into(), "bpf".into()]),
        attach: Some(Way::BpfLsm),
        cgroup2: Some("/sys/fs/cgroup".into()),
        bpffs: Some("/sys/fs/bpf".into()),
        hooks: vec![HookSeen {
            hook: "file_truncate",
            state: "absent",
            required: false,
            meaning: Some("nothing is lost"),
        }],
        orphans: vec!["session ab12cd34 has lost its supervisor".into()],
        missing: Vec::new(),
        proof: Some(vec![
            Proved::from((Class::FilesRead, Outcome::Enforced)),
            Proved::from((Class::NetworkV6, Outcome::Absent { why: "no IPv6 here".into() })),
        ]),
        enforced: true,
    }
}

/// Without colours, as a pipe gets it.
fn plain(diagnosis: &Diagnosis) -> String {
    anstream::adapter::strip_str(&render::render(diagnosis)).to_string()
}

#[test]
fn a_good_machine() {
    let text = plain(&diagnosis());
    for line in [
        "  kernel                 ok  6.1.0",
        "  active LSMs            ok  lockdown,bpf",
        "  file_truncate          ok  absent: nothing is lost",
        "  files.read             ok  enforced",
        "  network.v6             ok  absent: no IPv6 here",
        "Everything needed was seen to deny.",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(!text.contains("How to mend"));
}

#[test]
fn a_machine_that_lacks_something() {
    let mut bad = diagnosis();
    bad.attach = None;
    bad.proof = None;
    bad.enforced = false;
    bad.missing = vec![Remedy { what: "`bpf` is not active".into(), mend: "boot\nwith".into() }];
    let text = plain(&bad);
    for line in [
        "  active LSMs            ok  lockdown,bpf",
        "  attaching              no  impossible",
        "  not tried: nothing is known to be enforced here",
        "  `bpf` is not active",
        "    boot",
        "    with",
        "sandbox does not start agents here.",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn a_class_that_failed_is_told_and_not_enforced() {
    let mut bad = diagnosis();
    let outcome = Outcome::Failed { why: "read denied: was to be refused".into() };
    let classes = vec![(Class::FilesRead, outcome)];
    bad.explain(Failure::Canary(CanaryError::NotEnforced(CanaryReport { classes })));
    let text = plain(&bad);
    assert!(text.contains("files.read             no  failed: read denied"), "{text}");
    assert!(text.contains("files.read was not seen to be enforced"), "{text}");
}

#[test]
fn json_has_the_same_facts() {
    let json: serde_json::Value =
        serde_json::from_str(&serde_json::to_string(&diagnosis()).unwrap()).unwrap();
    assert_eq!(json["type"], "doctor");
    assert_eq!(json["proof"][0]["class"], "files.read");
    assert_eq!(json["proof"][0]["outcome"], "enforced");
    assert_eq!(json["proof"][0]["enforced"], true);
    assert_eq!(json["proof"][1]["enforced"], false);
    assert_eq!(json["proof"][1]["why"], "no IPv6 here");
    assert_eq!(json["hooks"][0]["meaning"], "nothing is lost");
    assert_eq!(json["enforced"], true);
}

#[test]
fn causes_are_told_once() {
    let cause = std::io::Error::other("because");
    let error = CanaryError::Step { what: "open", path: "/x".into(), source: cause };
    let text = chain(&error);
    assert_eq!(text.matches("because").count(), 1, "{text}");
}

#[test]
fn this_machine_can_be_looked_at() {
    let seen = Diagnosis::of(&Survey::take(Paths::default()));
    assert_eq!(seen.hooks.len(), LSM_HOOKS.len() + CGROUP_HOOKS.len());
    assert!(!seen.kernel.is_empty() && !seen.enforced);
}
