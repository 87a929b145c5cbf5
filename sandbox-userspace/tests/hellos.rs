//! The name that a TLS client asks for, out of what real clients send and out of what none would.
//!
//! `hellos/NAME.bin` are first packets as they were received, of OpenSSL's `s_client`, curl and Node.js.

#[allow(dead_code, reason = "a module of the suites, which use all of it")]
#[path = "../../tests/src/harness/hello.rs"]
mod hello;

use hello::{Hello, message, names, record};
use proptest::prelude::*;
use sandbox_common::event::Reason;
use sandbox_common::tls;
use sandbox_userspace::policy::server_names::asked_for;

const OPENSSL: &[u8] = include_bytes!("hellos/openssl-3.0.bin");
const NAMELESS: &[u8] = include_bytes!("hellos/openssl-3.0-nameless.bin");
/// Of TLS 1.2, with the name in upper case.
const OLD: &[u8] = include_bytes!("hellos/openssl-3.0-tls12.bin");
const CURL: &[u8] = include_bytes!("hellos/curl-7.88.bin");
const NODE: &[u8] = include_bytes!("hellos/node-20.bin");

const NAME: &str = "api.example.com";

fn is(bytes: &[u8], name: &str) {
    assert_eq!(asked_for(bytes).as_deref(), Ok(name));
}

fn is_refused(bytes: &[u8], reason: Reason) {
    assert_eq!(asked_for(bytes), Err(reason), "{}", bytes.escape_ascii());
}

#[test]
fn real_clients_ask_for_a_name() {
    for bytes in [OPENSSL, OLD, CURL, NODE] {
        is(bytes, NAME);
    }
    is_refused(NAMELESS, Reason::NoServerName);
    let browser = Hello::of_browser(NAME).record();
    assert!(browser.len() > 1500, "{}", browser.len());
    is(&browser, NAME);
    // What follows at once (early data) is not looked at.
    is(&[&browser[..], b"\x14\x03\x03\0\x01\x01\x17\x03\x03\0\x01x"].concat(), NAME);
    is(&Hello::of("API.Example.COM").record(), NAME);
}

#[test]
fn a_hello_that_is_not_whole_is_split() {
    let browser = Hello::of_browser(NAME).record();
    for bytes in [OPENSSL, NAMELESS, OLD, CURL, NODE, &browser] {
        for len in 1..bytes.len() {
            is_refused(&bytes[..len], Reason::SplitHello);
        }
    }
    is_refused(b"", Reason::NotTls);
    // Of two records, though both are there.
    let message = message(&Hello::of(NAME).body());
    for at in [1, 4, 40, message.len() - 1] {
        let split = [record(&message[..at]), record(&message[at..])].concat();
        let reason = asked_for(&split).expect_err("two records");
        assert!(matches!(reason, Reason::SplitHello | Reason::NotTls), "{at}: {reason:?}");
    }
}

#[test]
fn what_can_be_read_in_two_ways_is_refused() {
    let with = |extensions: Vec<(u16, Vec<u8>)>| Hello { extensions }.record();
    let one = |name: &[u8]| with(vec![names(&[(0, name)])]);
    for (bytes, reason) in [
        (with(vec![names(&[(0, b"a.example"), (0, b"b.example")])]), Reason::ServerName),
        (with(vec![names(&[(1, b"a.example")])]), Reason::ServerName),
        (with(vec![names(&[(0, b"a.example")]), names(&[(0, b"b.example")])]), Reason::NotTls),
        (with(vec![(0, Vec::new())]), Reason::NoServerName),
        (with(vec![(0, vec![0, 0])]), Reason::NotTls),
        (with(vec![(0, vec![0, 4, 0, 0, 9, b'a'])]), Reason::ServerName),
        (with(Vec::new()), Reason::NoServerName),
        (one(b""), Reason::ServerName),
        (one(b"a.example."), Reason::ServerName),
        (one(b".example"), Reason::ServerName),
        (one(b"a..example"), Reason::ServerName),
        (one(b"a.example\0.b"), Reason::ServerName),
        (one(b"\0a.example"), Reason::ServerName),
        (one(b"a example"), Reason::ServerName),
        (one("\u{e4}.example".as_bytes()), Reason::ServerName),
        (one(b"[2001:db8::1]"), Reason::ServerName),
        (one(&[b'a'; 252]), Reason::ServerName),
        (one(&[b'a'; 255]), Reason::ServerName),
        (with(vec![(9, vec![]); 65]), Reason::NotTls),
    ] {
        is_refused(&bytes, reason);
    }
    is(&one(&[b'a'; 251]), &"a".repeat(251));
    is(&one(b"192.0.2.1"), "192.0.2.1");
    let whole = Hello::of(NAME).record();
    let changed = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        bytes
    };
    // Another record, another version, another message, one that is longer or shorter than its record.
    for (at, byte) in [(0, 23), (0, b'G'), (1, 2), (5, 2), (8, whole[8] - 1)] {
        is_refused(&changed(at, byte), Reason::NotTls);
    }
    is_refused(&changed(8, whole[8] + 1), Reason::SplitHello);
    for text in ["GET / HTTP/1.1\r\n\r\n", "SSH-2.0-x\r\n", "\x16"] {
        assert!(asked_for(text.as_bytes()).is_err(), "{text}");
    }
}

fn extension() -> impl Strategy<Value = (u16, Vec<u8>)> {
    (1_u16.., proptest::collection::vec(any::<u8>(), 0..300))
}

proptest! {
    #[test]
    fn extensions_come_in_any_order(
        before in proptest::collection::vec(extension(), 0..20),
        behind in proptest::collection::vec(extension(), 0..20),
        name in "[a-zA-Z0-9_-]{1,40}(\\.[a-zA-Z0-9_-]{1,40}){0,4}",
    ) {
        let names = names(&[(0, name.as_bytes())]);
        let extensions = before.into_iter().chain([names]).chain(behind).collect();
        let bytes = Hello { extensions }.record();
        let expected = name.to_ascii_lowercase();
        prop_assert_eq!(asked_for(&bytes), Ok(expected));
    }

    #[test]
    fn no_byte_can_be_changed_unnoticed(at in 0_usize..1000, bit in 0_u8..8) {
        // Whatever is read is a name that is there, as the length before it says.
        let mut bytes = Hello::of(NAME).record();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        if let Ok(name) = asked_for(&bytes) {
            let wanted = [&u16::try_from(name.len()).unwrap().to_be_bytes()[..], name.as_bytes()].concat();
            let lower = bytes.to_ascii_lowercase();
            prop_assert!(lower.windows(wanted.len()).any(|part| part == wanted), "{}", name);
        }
    }
}

#[test]
fn options_that_join_another_connection_are_told_from_others() {
    const USUAL: &[u8] = &[2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
    const JOIN: &[u8] = &[30, 12, 0x10, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    // Where timestamps and the scaling of windows are off, an option of two bytes is the last one.
    const PLAIN: &[u8] = &[2, 4, 5, 180, 1, 1, 4, 2];
    const CAPABLE: &[u8] = &[30, 4, 1, 0];
    let joins = |parts: &[&[u8]]| {
        let options = parts.concat();
        tls::joins(&options.as_slice(), u32::try_from(options.len()).unwrap())
    };
    // What MPTCP begins with is no join; behind the end of the list nothing is read.
    for others in [
        &[][..],
        &[USUAL],
        &[PLAIN],
        &[PLAIN, &[1]],
        &[&[4, 2]],
        &[USUAL, CAPABLE],
        &[&[30, 3, 0]],
        &[&[1, 1, 0], JOIN],
    ] {
        assert!(!joins(others), "{others:?}");
    }
    assert!(!tls::joins(&[PLAIN, JOIN].concat().as_slice(), 8), "what is behind the options");
    // What cannot be read might be one: it ends too soon, or says that it does, or goes on behind the list.
    for join in [
        &[JOIN][..],
        &[USUAL, JOIN],
        &[PLAIN, JOIN],
        &[&[1, 1], JOIN],
        &[&[8, 0, 0]],
        &[&[8, 1, 0]],
        &[&[4]],
        &[&[4, 3]],
        &[PLAIN, &[8, 10, 0]],
        &[&[30]],
        &[&[30, 2]],
        &[&[30, 3]],
        &[&[30, 2], JOIN],
        &[CAPABLE, &[30, 3, 0x10]],
    ] {
        assert!(joins(join), "{join:?}");
    }
}
