use super::*;
use sandbox_common::event::{Hook, Kind, MOVED_BYTES, MovedPayload, Reason, VERSION};

const SESSION: u32 = 8;
const PID: u32 = 4711;
const COMM: &str = "exe";
const REGULAR: Stat = (0o100_644, 7, 0, 0);

fn header(denial: &Denial) -> Header {
    let mut comm = [0; 16];
    comm[..COMM.len()].copy_from_slice(COMM.as_bytes());
    Header {
        version: VERSION,
        kind: Kind::Path as u8,
        hook: denial.hooks[0] as u8,
        reason: Reason::Default as u8,
        access: denial.access.bits(),
        session: SESSION,
        rule: denial.rule.unwrap_or(1),
        mode: 1,
        time: 1,
        cgroup: 77,
        pid: PID,
        tid: PID,
        uid: 0,
        comm,
    }
}

/// The record that a kernel which enforces rightly writes for a denied attempt.
fn record(attempt: &Attempt, denial: &Denial, files: &BTreeMap<String, Stat>) -> Record {
    let header = header(denial);
    if let Some(to) = address(attempt.act) {
        let mut address = [0; 16];
        let (family, port) = if to == To::V6 {
            address[15] = 1;
            (libc::AF_INET6, 61)
        } else {
            address[..4].copy_from_slice(&[127, 0, 0, 1]);
            (libc::AF_INET, 41)
        };
        let tcp = matches!(attempt.act, Act::TcpConnect(..));
        let (family, protocol) = (u16::try_from(family).unwrap(), if tcp { 6 } else { 17 });
        return Record::Net { header, net: NetPayload { family, port, protocol, pad: 0, address } };
    }
    if let Act::AbstractSend(_) = attempt.act {
        return Record::Unix { header, name: b"00002".to_vec() };
    }
    if let Act::Signal(_) | Act::Environment(_) | Act::Seize = attempt.act {
        let mut comm = [0; 16];
        comm[..4].copy_from_slice(b"boss");
        let process = ProcessPayload { pid: std::process::id(), request: 0, comm };
        return Record::Process { header, process };
    }
    let Some(name) = denial.objects.first() else { return Record::Task { header } };
    let (dev, mut components) = match name.strip_prefix(SHELF) {
        Some(_) => (30, vec![]),
        None => (29, vec![b"sandbox".to_vec(), b"canary-1".to_vec()]),
    };
    let beneath = name.strip_prefix(SHELF).unwrap_or(name);
    components.extend(beneath.split('/').map(|part| part.as_bytes().to_vec()));
    let mode = files.get(*name).map_or(0, |stat| stat.0);
    Record::Path { header, object: Object { dev, rdev: 0, mode, components, truncated: false } }
}

/// A machine on which all is well.
fn well() -> Observed {
    let files: BTreeMap<String, Stat> = super::super::attempt::FILES
        .iter()
        .flat_map(|name| [(*name).to_owned(), format!("w/{name}")])
        .map(|name| (name, REGULAR))
        .collect();
    let mut answers = [(); 2].map(|()| Answer { comm: COMM.into(), results: Vec::new() });
    let mut records = Vec::new();
    for attempt in ATTEMPTS {
        let errno = match (attempt.denial, attempt.act) {
            (Some(denial), _) => {
                records.push(record(attempt, &denial, &files));
                if denial.objects.is_empty() { libc::EPERM } else { libc::EACCES }
            }
            (None, Act::TcpConnect(..)) => libc::ECONNREFUSED,
            (None, _) => 0,
        };
        answers[usize::from(attempt.moved)].results.push((attempt.name.into(), errno));
    }
    let mut header = header(&ATTEMPTS.iter().find_map(|attempt| attempt.denial).unwrap());
    header.hook = Hook::CgroupAttachTask as u8;
    let moved = MovedPayload { pid: PID, pad: 0, comm: [0; 16], to: [0; MOVED_BYTES] };
    records.push(Record::Moved { header, moved: Box::new(moved) });
    Observed {
        session: SESSION,
        answers,
        records,
        before: files.clone(),
        after: files,
        place: (29, vec![b"sandbox".to_vec(), b"canary-1".to_vec()]),
        shelf: 30,
        untraceable: false,
        pid: Some(PID),
        uid: 0,
        parent: "boss".into(),
        cgroup: 77,
        v4: (40, 41),
        v6: (60, 61),
        loopback6: true,
        arrived: (true, false),
        names: (b"00001".to_vec(), b"00002".to_vec()),
        arrived_unix: (true, false),
    }
}

fn set(observed: &mut Observed, name: &str, errno: i32) {
    for answer in &mut observed.answers {
        for result in answer.results.iter_mut().filter(|result| result.0 == name) {
            result.1 = errno;
        }
    }
}

/// The classes that failed.
fn failed(observed: &Observed) -> Vec<Class> {
    judge(observed).failures().map(|(class, _)| class).collect()
}

#[test]
fn all_is_well() {
    let report = judge(&well());
    assert_eq!(report.classes.len(), Class::ALL.len());
    assert!(report.classes.iter().all(|(_, outcome)| *outcome == Outcome::Enforced), "{report:?}");
}

#[test]
fn each_attempt_that_goes_wrong_fails_its_class() {
    for attempt in ATTEMPTS {
        let mut observed = well();
        let wrong = if attempt.denial.is_some() { 0 } else { libc::EACCES };
        set(&mut observed, attempt.name, wrong);
        assert_eq!(failed(&observed), [attempt.class], "{}", attempt.name);
        // Refused for another reason is not denied by us.
        set(&mut observed, attempt.name, libc::EROFS);
        assert_eq!(failed(&observed), [attempt.class], "{}", attempt.name);
        let mut observed = well();
        for answer in &mut observed.answers {
            answer.results.retain(|result| result.0 != attempt.name);
        }
        assert_eq!(failed(&observed), [attempt.class], "{}", attempt.name);
    }
}

#[test]
fn a_denial_without_its_event_fails() {
    for attempt in ATTEMPTS {
        let Some(denial) = attempt.denial else { continue };
        let mut observed = well();
        let all = well();
        observed.records.retain(|record| !all.speaks_of(record.header(), &denial));
        assert!(failed(&observed).contains(&attempt.class), "{}", attempt.name);
    }
    let mut observed = well();
    for record in &mut observed.records {
        if let Record::Path { header, .. } = record {
            header.session = 1;
        }
    }
    assert!(failed(&observed).contains(&Class::FilesRead));
}

#[test]
fn each_fact_of_an_event_is_compared() {
    /// Changes one fact of the denied read, and says which word the complaint has.
    type Change = (&'static str, fn(&mut Header, &mut Object));
    let changes: &[Change] = &[
        ("pid", |header, _| header.pid += 1),
        ("tid", |header, _| header.tid += 1),
        ("uid", |header, _| header.uid = 1000),
        ("cgroup", |header, _| header.cgroup = 78),
        ("comm", |header, _| header.comm[0] = b'x'),
        ("no event", |header, _| header.rule = 0),
        ("no event", |header, _| header.hook = Hook::PathMknod as u8),
        ("no event", |header, _| header.access = 0),
        ("device of the file system", |_, object| object.dev = 0),
        ("device number", |_, object| object.rdev = 1),
        ("mode", |_, object| object.mode = 0o100_600),
        ("truncated", |_, object| object.truncated = true),
        ("its path is", |_, object| object.components[0] = b"run".to_vec()),
        ("its path is", |_, object| object.components.truncate(2)),
    ];
    for (word, change) in changes {
        let mut observed = well();
        for record in &mut observed.records {
            if let Record::Path { header, object } = record
                && object.components.last().is_some_and(|name| name == b"secret")
            {
                change(header, object);
            }
        }
        let report = judge(&observed);
        let (class, why) = report.failures().next().unwrap();
        assert_eq!(class, Class::FilesRead);
        assert!(why.contains(word), "{word}: {why}");
    }
    let mut observed = well();
    for record in &mut observed.records {
        match record {
            Record::Net { net, .. } => net.port = 40,
            Record::Process { process, .. } => process.comm[0] = b'x',
            _ => {}
        }
    }
    let classes = failed(&observed);
    for class in [Class::NetworkV4, Class::NetworkV6, Class::NetworkMapped, Class::ProcessesSignal]
    {
        assert!(classes.contains(&class), "{class}");
    }
}

#[test]
fn what_was_refused_must_not_have_happened() {
    let mut observed = well();
    observed.after.insert("new".into(), REGULAR);
    assert_eq!(failed(&observed), [Class::FilesCreate]);
    let mut observed = well();
    observed.after.insert("truncate".into(), (0o100_644, 0, 0, 0));
    assert_eq!(failed(&observed), [Class::FilesTruncate]);
    let mut observed = well();
    observed.after.remove("unlink");
    assert_eq!(failed(&observed), [Class::FilesDelete]);
}

#[test]
fn without_ipv6_its_classes_are_absent() {
    let mut observed = well();
    for attempt in ATTEMPTS.iter().filter(|attempt| uses_v6(attempt.act)) {
        set(&mut observed, attempt.name, libc::EAFNOSUPPORT);
    }
    let report = judge(&observed);
    for (class, outcome) in &report.classes {
        let absent = matches!(class, Class::NetworkV6 | Class::NetworkMapped);
        assert_eq!(matches!(outcome, Outcome::Absent { .. }), absent, "{class}");
    }
    assert_eq!(report.failures().count(), 0);
}

#[test]
fn where_nobody_traces_that_is_said() {
    let mut observed = well();
    observed.records.retain(|record| !matches!(record, Record::Process { header, .. } if header.hook == Hook::PtraceAccessCheck as u8));
    assert_eq!(failed(&observed), [Class::ProcessesTrace]);
    let mut observed = Observed { untraceable: true, ..well() };
    let absent = judge(&observed).classes;
    let absent = absent.iter().find(|(class, _)| *class == Class::ProcessesTrace).unwrap();
    assert!(matches!(absent.1, Outcome::Absent { .. }), "{absent:?}");
    set(&mut observed, "trace another process", 0);
    assert_eq!(failed(&observed), [Class::ProcessesTrace]);
}

#[test]
fn without_an_address_the_denials_still_count() {
    let mut observed = well();
    set(&mut observed, "tcp6 allowed", libc::EADDRNOTAVAIL);
    set(&mut observed, "udp6 allowed", libc::ENETUNREACH);
    assert_eq!(failed(&observed), [Class::NetworkV6]);
    observed.loopback6 = false;
    assert_eq!(failed(&observed), []);
    set(&mut observed, "udp6 send", libc::EADDRNOTAVAIL);
    assert_eq!(failed(&observed), [Class::NetworkV6]);
}

#[test]
fn the_move_must_be_told() {
    let mut observed = well();
    observed.records.retain(|record| !matches!(record, Record::Moved { .. }));
    assert_eq!(failed(&observed), [Class::Membership]);
    let mut observed = well();
    observed.pid = Some(PID + 1);
    assert!(failed(&observed).contains(&Class::Membership));
}

#[test]
fn datagrams_must_arrive_where_they_may_and_nowhere_else() {
    for arrived in [(true, true), (false, false), (false, true)] {
        let observed = Observed { arrived, ..well() };
        assert_eq!(failed(&observed), [Class::NetworkUdp]);
    }
}

#[test]
fn outside_the_initial_pid_namespace_the_pid_cannot_be_compared() {
    let observed = Observed { pid: None, ..well() };
    assert_eq!(failed(&observed), []);
}
