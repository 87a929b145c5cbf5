//! What a member asks, and what is to be done about it.

use crate::policy::names::{Named, Names};
use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RecordType};
use sandbox_common::tls::is_of_names;

/// Bytes of a message's header, RFC 1035.
const HEADER: usize = 12;

/// What comes of a message.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// Nothing: it is no question.
    Ignore,
    /// This answer.
    Answer(Box<Message>),
    /// The name is not allowed: this answer, and an event.
    Refuse(Box<Message>, Refused),
    /// To be asked upstream.
    Ask(Box<Question>),
}

/// A question that is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// The name in lower case; bytes that are none of names are escaped.
    pub(super) name: String,
    /// The type of records.
    pub(super) kind: String,
    /// The rule that denies it; 0 where none speaks of it.
    pub(super) rule: u32,
}

/// A question about a name that is allowed.
#[derive(Debug, PartialEq)]
pub(super) struct Question {
    /// As it was asked.
    pub(super) message: Message,
    /// The name as written on the wire.
    pub(super) name: Name,
    /// In lower case without its last dot.
    pub(super) text: String,
    /// The type of records.
    pub(super) kind: RecordType,
}

/// Judges the bytes that a member sent.
pub(super) fn judge(bytes: &[u8], names: &Names) -> Verdict {
    let Ok(message) = Message::from_vec(bytes) else { return malformed(bytes) };
    if message.metadata.message_type != MessageType::Query {
        return Verdict::Ignore;
    }
    let answer = |code| Verdict::Answer(Box::new(reply(&message, code)));
    if message.metadata.op_code != OpCode::Query {
        return answer(ResponseCode::NotImp);
    }
    if message.version() != 0 {
        return answer(ResponseCode::BADVERS);
    }
    let [query] = message.queries.as_slice() else { return answer(ResponseCode::FormErr) };
    let (name, kind) = (query.name().clone(), query.query_type());
    let refuse = |name: String, rule| {
        let refused = Refused { name, kind: kind.to_string(), rule };
        Verdict::Refuse(Box::new(reply(&message, ResponseCode::Refused)), refused)
    };
    let Some(text) = text_of(&name) else {
        return refuse(name.to_ascii(), 0);
    };
    match names.decide(&text) {
        Named::Open(_) if query.query_class() == DNSClass::IN && is_asked(kind) => {
            Verdict::Ask(Box::new(Question { message, name, text, kind }))
        }
        Named::Open(_) | Named::Unknown => refuse(text, 0),
        Named::Denied(rule) => refuse(text, rule),
    }
}

/// A question that can be asked whatever the rules say.
pub(super) fn unjudged(bytes: &[u8]) -> Option<Question> {
    let message = Message::from_vec(bytes).ok()?;
    let [query] = message.queries.as_slice() else { return None };
    let (name, kind) = (query.name().clone(), query.query_type());
    let asked = query.query_class() == DNSClass::IN && is_asked(kind);
    let text = text_of(&name).filter(|_| asked)?;
    Some(Question { message, name, text, kind })
}

/// Types that are asked for: of single records, by programs that want to reach a host.
fn is_asked(kind: RecordType) -> bool {
    matches!(
        kind,
        RecordType::A
            | RecordType::AAAA
            | RecordType::CNAME
            | RecordType::HTTPS
            | RecordType::SVCB
            | RecordType::SRV
            | RecordType::MX
            | RecordType::TXT
            | RecordType::NS
            | RecordType::SOA
            | RecordType::CAA
    )
}

/// A name in lower case without its last dot; `None` where it holds what no rule can name.
pub(super) fn text_of(name: &Name) -> Option<String> {
    let mut text = String::new();
    for label in name {
        let label = label.to_ascii_lowercase();
        if !label.iter().copied().all(is_of_names) {
            return None;
        }
        if !text.is_empty() {
            text.push('.');
        }
        text.extend(label.into_iter().map(char::from));
    }
    Some(text)
}

/// The beginning of an answer.
pub(super) fn reply(question: &Message, code: ResponseCode) -> Message {
    let mut reply = Message::response(question.metadata.id, question.metadata.op_code);
    reply.metadata.recursion_desired = question.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    reply.metadata.checking_disabled = question.metadata.checking_disabled;
    reply.metadata.response_code = code;
    reply.queries.clone_from(&question.queries);
    if let Some(asked) = &question.edns {
        let mut edns = hickory_proto::op::Edns::new();
        edns.set_max_payload(super::serve::LARGEST_DATAGRAM);
        edns.flags_mut().dnssec_ok = asked.flags().dnssec_ok;
        reply.edns = Some(edns);
    }
    reply
}

/// What cannot be read is told so where it is a question at all.
fn malformed(bytes: &[u8]) -> Verdict {
    let Some([id, id2, flags, ..]) = bytes.get(..HEADER) else { return Verdict::Ignore };
    // The highest bit of the flags tells answers from questions.
    if flags & 0x80 != 0 {
        return Verdict::Ignore;
    }
    let id = u16::from_be_bytes([*id, *id2]);
    let message = Message::error_msg(id, OpCode::Query, ResponseCode::FormErr);
    Verdict::Answer(Box::new(message))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::policy::names::{NameEntry, NameLayer};
    use hickory_proto::op::Query;
    use proptest::prelude::*;

    fn entry(name: &str, beneath: bool, allow: bool, rule: u32) -> NameEntry {
        NameEntry {
            name: name.into(),
            beneath,
            allow,
            rule,
            ports: (443, 443),
            protocols: [true, false],
            sni: false,
        }
    }

    pub(in super::super) fn names() -> Names {
        let entries = vec![
            entry("api.example.com", false, true, 1),
            entry("example.org", true, true, 2),
            entry("bad.example.org", false, false, 3),
        ];
        Names::new(vec![NameLayer { closes: true, entries }])
    }

    pub(in super::super) fn ask(name: &str, kind: RecordType) -> Message {
        let mut message = Message::query();
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        message
    }

    fn judged(message: &Message) -> Verdict {
        judge(&message.to_vec().unwrap(), &names())
    }

    #[test]
    fn allowed_names_are_asked_for() {
        for name in ["api.example.com.", "API.eXample.com.", "x.y.example.org."] {
            let Verdict::Ask(question) = judged(&ask(name, RecordType::A)) else {
                panic!("{name}")
            };
            assert_eq!(format!("{}.", question.text), name.to_ascii_lowercase());
        }
    }

    #[test]
    fn all_others_are_refused() {
        for (name, rule) in [
            ("example.com.", 0),
            ("x.api.example.com.", 0),
            ("example.org.", 0),
            ("bad.example.org.", 3),
            (".", 0),
        ] {
            let Verdict::Refuse(answer, refused) = judged(&ask(name, RecordType::AAAA)) else {
                panic!("{name}: {:?}", judged(&ask(name, RecordType::AAAA)))
            };
            assert_eq!(answer.metadata.response_code, ResponseCode::Refused);
            assert_eq!((refused.rule, refused.kind.as_str()), (rule, "AAAA"), "{name}");
        }
        // Bytes of labels that no rule can name, one of them a dot that is none.
        for label in [&b"api.example.com\0"[..], b"a.b", "ä".as_bytes(), b"a b"] {
            let mut message = ask("x.example.org.", RecordType::A);
            let name = Name::from_labels([label, b"example", b"org"]).unwrap();
            message.queries[0].set_name(name);
            assert!(matches!(judged(&message), Verdict::Refuse(..)), "{label:?}");
        }
        for kind in [RecordType::ANY, RecordType::AXFR, RecordType::NULL, RecordType::Unknown(999)]
        {
            assert!(
                matches!(judged(&ask("api.example.com.", kind)), Verdict::Refuse(..)),
                "{kind}"
            );
        }
        let mut chaos = ask("api.example.com.", RecordType::TXT);
        chaos.queries[0].set_query_class(DNSClass::CH);
        assert!(matches!(judged(&chaos), Verdict::Refuse(..)));
    }

    #[test]
    fn what_is_no_question_gets_no_answer_or_an_error() {
        let code = |verdict| match verdict {
            Verdict::Answer(answer) => answer.metadata.response_code,
            other => panic!("{other:?}"),
        };
        let mut twice = ask("api.example.com.", RecordType::A);
        twice.add_query(twice.queries[0].clone());
        assert_eq!(code(judged(&twice)), ResponseCode::FormErr);
        let mut update = ask("api.example.com.", RecordType::A);
        update.metadata.op_code = OpCode::Update;
        assert_eq!(code(judged(&update)), ResponseCode::NotImp);
        assert_eq!(code(judge(&[7; 20][..], &names())), ResponseCode::FormErr);
        let answer = reply(&ask("api.example.com.", RecordType::A), ResponseCode::NoError);
        assert_eq!(judged(&answer), Verdict::Ignore);
        assert_eq!(judge(b"", &names()), Verdict::Ignore);
        assert_eq!(judge(&[0x80; 20][..], &names()), Verdict::Ignore);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = judge(&bytes, &names());
        }

        #[test]
        fn no_damaged_question_is_asked_for_another_name(
            at in 0_usize..80, with in any::<u8>(), cut in 0_usize..80,
        ) {
            let mut bytes = ask("api.example.com.", RecordType::A).to_vec().unwrap();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = with;
            }
            bytes.truncate(bytes.len().saturating_sub(cut.saturating_sub(60)));
            if let Verdict::Ask(question) = judge(&bytes, &names()) {
                prop_assert!(
                    question.text == "api.example.com" || question.text.ends_with(".example.org")
                );
            }
        }
    }
}
