use super::*;
use attempt::ATTEMPTS;
use std::collections::HashMap;

fn place(dir: &Path) -> Place {
    let scratch = Scratch::fill(&dir.join("canary")).unwrap();
    let sockets = Sockets::bind(&scratch.dir).unwrap();
    Place { scratch, ports: Ports::bind().unwrap(), sockets }
}

/// Both stages in this process, which nothing confines.
fn unconfined(Place { scratch, ports, sockets }: &Place) -> [Answer; 2] {
    let file = OpenOptions::new().read(true).write(true).open(scratch.dir.join(INHERITED)).unwrap();
    let orders = Orders {
        dir: scratch.dir.clone(),
        // No cgroup: the kernel refuses to make a process there.
        cgroup: scratch.dir.clone(),
        inherited: file.as_raw_fd(),
        shelf: scratch.shelf.root.as_raw_fd(),
        v4: ports.v4(),
        v6: ports.v6(),
        names: sockets.names(),
    };
    let orders: Orders = serde_json::from_slice(&serde_json::to_vec(&orders).unwrap()).unwrap();
    [child::attempt(&orders, false), child::attempt(&orders, true)]
}

#[test]
fn where_nothing_enforces_every_class_fails_and_every_twin_passes() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(dir.path());
    let Place { scratch, ports, sockets } = &place;
    let before = scratch.stats().unwrap();
    let answers = unconfined(&place);
    for attempt in ATTEMPTS.iter().filter(|attempt| attempt.denial.is_none()) {
        let results = &answers[usize::from(attempt.moved)].results;
        let (_, errno) = results.iter().find(|(name, _)| name == attempt.name).unwrap();
        let v6 = attempt.class == Class::NetworkV6 && !ports.loopback6();
        assert!(
            matches!(errno, 0 | &libc::ECONNREFUSED | &libc::ENOEXEC) || v6,
            "{}: {errno}",
            attempt.name
        );
    }
    let observed = Observed {
        session: 1,
        answers,
        records: Vec::new(),
        before,
        after: scratch.stats().unwrap(),
        place: scratch.place.clone(),
        shelf: scratch.shelf.dev,
        untraceable: untraceable(),
        pid: Some(std::process::id()),
        uid: 0,
        parent: String::new(),
        cgroup: 1,
        v4: ports.v4(),
        v6: ports.v6(),
        loopback6: ports.loopback6(),
        arrived: ports.arrived(),
        names: sockets.names(),
        arrived_unix: sockets.arrived(),
    };
    assert_ne!(observed.before, observed.after);
    assert_eq!((observed.arrived, observed.arrived_unix), ((true, true), (true, true)));
    for (class, outcome) in judge::judge(&observed).classes {
        let failed = matches!(outcome, Outcome::Failed { .. });
        assert!(
            failed || matches!(outcome, Outcome::Absent { .. }) && !ports.loopback6(),
            "{class}"
        );
    }
}

#[test]
fn the_scratch_directory_vanishes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("canary");
    let scratch = Scratch::fill(&path).unwrap();
    assert!(path.join("w/rmdir").is_dir() && path.join(SECRET).is_file());
    drop(scratch);
    assert!(!path.exists());
}

/// Follows the policy's edges as the kernel does.
fn rights(policy: &CompiledPolicy, names: &[&[u8]]) -> Rights {
    let edges: HashMap<(u32, &[u8]), Node> =
        policy.edges.iter().map(|edge| ((edge.from, edge.name.as_slice()), edge.to)).collect();
    let Root { mut own, below: mut at, .. } = policy.roots[1].1;
    for name in names {
        let beneath = edges.keys().filter(|(from, _)| *from == at.node).count();
        assert_eq!(beneath, at.edges as usize);
        let node = edges.get(&(at.node, *name)).copied().unwrap_or_default();
        own = at.rights;
        own.fold(&node.own);
        at.rights.fold(&node.below);
        (at.node, at.edges) = (node.id, node.edges);
    }
    own
}

#[test]
fn the_policy_says_what_the_attempts_expect() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(dir.path());
    let policy = policy(&place);
    let names: Vec<&[u8]> = place.scratch.place.1.iter().map(Vec::as_slice).collect();
    let at = |rest: &[&'static [u8]]| rights(&policy, &[names.as_slice(), rest].concat());
    let read = (Access::READ | Access::EXECUTE).bits();
    assert_eq!(
        at(&[b"secret"]),
        Rights { allow: Access::EXECUTE.bits(), rules: [READ_RULE, 0, 0, 0, 0, 0] }
    );
    let allow = read | Access::WRITES.bits();
    let all = Rights { allow, rules: [0, WRITE_RULE, 0, 0, WRITE_RULE, WRITE_RULE] };
    assert_eq!(at(&[b"w"]), all);
    assert_eq!(at(&[b"w", b"deep", b"er"]), all);
    let outside = Rights { allow: read, ..Rights::default() };
    for rest in [&[][..], &[b"open".as_slice()], &[b"rmdir".as_slice(), b"x"]] {
        assert_eq!(at(rest), outside);
    }
    assert_eq!(rights(&policy, &[b"etc"]), outside);
    let ids: std::collections::HashSet<u32> = policy.edges.iter().map(|e| e.to.id).collect();
    assert_eq!(ids.len(), policy.edges.len());
}

#[test]
fn a_failure_names_class_and_reason() {
    let classes = vec![
        (Class::FilesRead, Outcome::Enforced),
        (Class::NetworkV4, Outcome::Failed { why: "tcp4 connect: was to be refused".into() }),
    ];
    let text = CanaryError::NotEnforced(CanaryReport { classes }).to_string();
    assert!(text.contains("network.v4: tcp4 connect") && !text.contains("files.read"), "{text}");
    assert!(text.contains("Nothing is started"), "{text}");
}
