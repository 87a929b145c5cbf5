//! What the resolver adds to the time of a question, on loopback: `--ignored`, with an optimised build.

use super::super::grants::{Grants, Open, Spot, Stay};
use super::*;
use crate::policy::names::{NameEntry, NameLayer};
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, RecordType};
use std::time::Instant;

const PAIRS: usize = 2000;
/// The most that may be added, in the median.
const MOST: Duration = Duration::from_micros(300);

/// The kernel's table, without the kernel: a question enters one entry, which takes a microsecond or two there.
struct Nowhere;

impl Table for Nowhere {
    fn open(&mut self, _: Spot, _: Open) -> anyhow::Result<()> {
        Ok(())
    }

    fn close(&mut self, _: Spot) -> anyhow::Result<()> {
        Ok(())
    }
}

fn loopback() -> std::net::UdpSocket {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Answers everything with one address.
fn upstream() -> SocketAddr {
    let socket = loopback();
    socket.set_read_timeout(None).unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let question = Message::from_vec(&buffer[..length]).unwrap();
            let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
            answer.queries.clone_from(&question.queries);
            let name = question.queries[0].name().clone();
            answer.add_answer(Record::from_rdata(name, 300, RData::A(A::new(192, 0, 2, 1))));
            socket.send_to(&answer.to_vec().unwrap(), from).unwrap();
        }
    });
    address
}

/// The resolver's server over a socket, as the process has it.
fn serve(servers: Vec<SocketAddr>) -> SocketAddr {
    let socket = loopback();
    let address = socket.local_addr().unwrap();
    let entry = NameEntry {
        name: "example.org".into(),
        beneath: true,
        allow: true,
        rule: 1,
        ports: (443, 443),
        protocols: [true, true],
        sni: false,
    };
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let work = async {
            socket.set_nonblocking(true).unwrap();
            let names = Names::new(vec![NameLayer { closes: true, entries: vec![entry] }]);
            let shared = Shared {
                rules: RefCell::new(Rules { names, within: Vec::new() }),
                audit: false,
                resolver: resolver(&servers).unwrap(),
                grants: RefCell::new(Grants::new(Stay::default())),
                table: RefCell::new(Box::new(Nowhere)),
                refusals: RefCell::default(),
                known: RefCell::default(),
                silent: RefCell::new(false),
            };
            serve::datagrams(UdpSocket::from_std(socket).unwrap(), Rc::new(shared)).await
        };
        LocalSet::new().block_on(&runtime, work)
    });
    address
}

fn question(name: &str) -> Vec<u8> {
    let mut question = Message::query();
    question.metadata.recursion_desired = true;
    question.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    question.to_vec().unwrap()
}

fn time(socket: &std::net::UdpSocket, name: &str) -> Duration {
    let (bytes, mut buffer) = (question(name), [0; 4096]);
    let begun = Instant::now();
    socket.send(&bytes).unwrap();
    let length = socket.recv(&mut buffer).unwrap();
    let taken = begun.elapsed();
    assert_eq!(Message::from_vec(&buffer[..length]).unwrap().answers.len(), 1, "{name}");
    taken
}

/// Until the second answer, which is the one that musl takes.
fn refusal(socket: &std::net::UdpSocket, name: &str) -> Duration {
    let (bytes, mut buffer) = (question(name), [0; 4096]);
    let begun = Instant::now();
    socket.send(&bytes).unwrap();
    for _ in 0..2 {
        let length = socket.recv(&mut buffer).unwrap();
        assert!(Message::from_vec(&buffer[..length]).unwrap().answers.is_empty(), "{name}");
    }
    begun.elapsed()
}

fn median(mut times: Vec<i128>) -> i128 {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
#[ignore = "measures time"]
fn a_question_takes_little_longer_than_upstream() {
    let server = upstream();
    let (direct, through) = (loopback(), loopback());
    direct.connect(server).unwrap();
    through.connect(serve(vec![server])).unwrap();
    let nanoseconds = |time: Duration| i128::try_from(time.as_nanos()).unwrap();
    for (what, fresh) in [("names asked for the first time", true), ("names in the cache", false)] {
        let pairs: Vec<[i128; 2]> = (0..PAIRS)
            .map(|number| {
                let name = format!("n{}.example.org.", if fresh { number } else { number % 8 });
                [time(&direct, &name), time(&through, &name)].map(nanoseconds)
            })
            .collect();
        let of = |pick: fn(&[i128; 2]) -> i128| median(pairs.iter().map(pick).collect()) / 1000;
        let added = of(|[direct, through]| through - direct);
        eprintln!(
            "{what}: upstream {} us, resolver {} us, added {added} us (medians of {PAIRS})",
            of(|[direct, _]| *direct),
            of(|[_, through]| *through),
        );
        assert!(added <= i128::try_from(MOST.as_micros()).unwrap(), "{what}");
    }
}

#[test]
#[ignore = "measures time"]
fn a_forbidden_name_is_refused_at_once() {
    let through = loopback();
    // Nobody is there to be asked, and nobody is.
    through.connect(serve(vec![SocketAddr::from(([192, 0, 2, 1], 53))])).unwrap();
    let mut times: Vec<Duration> =
        (0..PAIRS).map(|number| refusal(&through, &format!("n{number}.example.net."))).collect();
    times.sort_unstable();
    let (median, last) = (times[PAIRS / 2], times[PAIRS - 1]);
    eprintln!("another name is refused after {median:?}, the last of {PAIRS} after {last:?}");
    assert!(median < Duration::from_millis(100));
}
