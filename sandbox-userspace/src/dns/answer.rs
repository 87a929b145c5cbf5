//! What the world answered, and what of it a member gets.

use super::question::{Question, reply, text_of};
use crate::policy::names::Opening;
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::svcb::SvcParamKey;
use hickory_proto::rr::rdata::{HTTPS, SVCB};
use hickory_proto::rr::{RData, Record};
use ipnet::IpNet;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address that an answer opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// Where.
    pub(super) address: IpAddr,
    /// Seconds for which the answer holds.
    pub(super) ttl: u32,
    /// The name that was asked for.
    pub(super) name: String,
    /// What is opened there.
    pub(super) open: Vec<Opening>,
}

/// An answer and what it opens.
#[derive(Debug)]
pub(super) struct Answered {
    /// For the member.
    pub(super) message: Message,
    /// To be opened before it leaves.
    pub(super) grants: Vec<Grant>,
    /// Addresses that a name may not lead to.
    pub(super) withheld: Vec<IpAddr>,
}

/// Takes out of the records what a member may not have. `open`: what the name opens at its addresses. `within`:
/// networks of this site that the policy opens, into which names may lead.
pub(super) fn answer(
    question: &Question,
    open: &[Opening],
    records: &[Record],
    within: &[IpNet],
) -> Answered {
    let mut message = reply(&question.message, ResponseCode::NoError);
    let (mut grants, mut withheld) = (Vec::new(), Vec::new());
    let chain = chain(question, records);
    for record in records {
        let Some(owner) = text_of(&record.name).filter(|owner| chain.contains(owner)) else {
            continue;
        };
        let address = match &record.data {
            RData::A(a) => Some(IpAddr::V4(a.0)),
            RData::AAAA(aaaa) => Some(IpAddr::V6(aaaa.0)),
            _ => None,
        };
        if let Some(address) = address {
            if is_of_this_site(address)
                && !within.iter().any(|net| net.contains(&address.to_canonical()))
            {
                withheld.push(address);
                continue;
            }
            grants.push(Grant {
                address,
                ttl: record.ttl,
                name: question.text.clone(),
                open: open.to_vec(),
            });
        }
        let mut record = record.clone();
        // In the member's own letters, as some resolvers check.
        if owner == question.text {
            record.name = question.name.clone();
        }
        match &mut record.data {
            RData::HTTPS(HTTPS(service)) | RData::SVCB(service) => without_hints(service),
            _ => {}
        }
        message.add_answer(record);
    }
    if message.answers.iter().all(|record| record.record_type() != question.kind)
        && !withheld.is_empty()
    {
        message.answers.clear();
        message.metadata.response_code = ResponseCode::Refused;
    }
    Answered { message, grants, withheld }
}

/// The names that the question's name stands for, itself the first.
fn chain(question: &Question, records: &[Record]) -> HashSet<String> {
    let mut chain = HashSet::from([question.text.clone()]);
    // Each round finds at least one more name, or is the last.
    for _ in records {
        let before = chain.len();
        for record in records {
            if let RData::CNAME(target) = &record.data
                && text_of(&record.name).is_some_and(|owner| chain.contains(&owner))
                && let Some(target) = text_of(&target.0)
            {
                chain.insert(target);
            }
        }
        if chain.len() == before {
            break;
        }
    }
    chain
}

/// Addresses are opened by A and AAAA only; hints would lead where nothing is open.
fn without_hints(service: &mut SVCB) {
    service
        .svc_params
        .retain(|(key, _)| !matches!(key, SvcParamKey::Ipv4Hint | SvcParamKey::Ipv6Hint));
}

/// Whether an address means something only here: this machine, its network, its cloud. Whoever serves a name
/// could lead the agent there (rebinding).
pub fn is_of_this_site(address: IpAddr) -> bool {
    if crate::policy::decide::reserved().any(|net| net.contains(&address.to_canonical())) {
        return true;
    }
    match address.to_canonical() {
        IpAddr::V4(v4) => of_site_v4(v4),
        IpAddr::V6(v6) => {
            let [a, b, _, _, _, _, g, h] = v6.segments();
            let low = Ipv4Addr::from(u32::from(g) << 16 | u32::from(h));
            v6.is_unspecified()
                || v6.is_loopback()
                || v6.is_multicast()
                || v6.is_unique_local()
                || v6.is_unicast_link_local()
                // Site-local, of old.
                || a & 0xffc0 == 0xfec0
                // IPv4 in other clothes: compatible, translated (NAT64), 6to4.
                || (v6.to_bits() >> 32 == 0)
                || (v6.to_bits() >> 32 == NAT64.to_bits() >> 32 && of_site_v4(low))
                || (a == 0x2002 && of_site_v4(Ipv4Addr::from(u32::from(b) << 16 | u32::from(v6.segments()[2]))))
        }
    }
}

/// RFC 6052.
const NAT64: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0);

fn of_site_v4(v4: Ipv4Addr) -> bool {
    let [a, b, c, _] = v4.octets();
    a == 0
        || v4.is_private()
        || v4.is_loopback()
        || v4.is_link_local()
        || v4.is_multicast()
        // RFC 6598 shared, RFC 6890 protocol assignments, RFC 2544 benchmarks, and beyond multicast.
        || (a == 100 && b & 0xc0 == 64)
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && b & 0xfe == 18)
        || a >= 240
}

#[cfg(test)]
mod tests {
    use super::super::question::{Verdict, judge, tests};
    use super::*;
    use hickory_proto::rr::rdata::svcb::{IpHint, SvcParamValue};
    use hickory_proto::rr::rdata::{A, AAAA, CNAME};
    use hickory_proto::rr::{Name, RecordType};

    fn question(kind: RecordType) -> Question {
        let bytes = tests::ask("Api.example.com.", kind).to_vec().unwrap();
        let Verdict::Ask(question) = judge(&bytes, &tests::names()) else { panic!() };
        *question
    }

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    fn record(owner: &str, data: RData) -> Record {
        Record::from_rdata(name(owner), 300, data)
    }

    fn a(owner: &str, address: &str) -> Record {
        record(owner, RData::A(A(address.parse().unwrap())))
    }

    fn cname(owner: &str, target: &str) -> Record {
        record(owner, RData::CNAME(CNAME(name(target))))
    }

    #[test]
    fn aliases_are_followed_and_strangers_left_out() {
        let records = [
            a("edge.cdn.net.", "192.0.2.2"),
            cname("mid.cdn.net.", "Edge.cdn.net."),
            cname("api.example.com.", "mid.cdn.net."),
            a("other.example.net.", "192.0.2.9"),
        ];
        let Answered { message, grants, withheld } =
            answer(&question(RecordType::A), &[], &records, &[]);
        assert_eq!(message.answers.len(), 3);
        assert_eq!(grants.len(), 1);
        assert_eq!(grants[0].address, IpAddr::from([192, 0, 2, 2]));
        assert_eq!((grants[0].name.as_str(), grants[0].ttl), ("api.example.com", 300));
        assert!(withheld.is_empty());
        assert_eq!(message.answers[2].name.to_ascii(), "Api.example.com.");
    }

    #[test]
    fn circles_of_aliases_end() {
        let records = [cname("api.example.com.", "b.net."), cname("b.net.", "api.example.com.")];
        assert_eq!(answer(&question(RecordType::A), &[], &records, &[]).message.answers.len(), 2);
    }

    #[test]
    fn addresses_of_this_site_are_withheld_unless_the_policy_opens_them() {
        let records = [a("api.example.com.", "10.1.2.3"), a("api.example.com.", "192.0.2.1")];
        let answered = answer(&question(RecordType::A), &[], &records, &[]);
        assert_eq!(answered.withheld, [IpAddr::from([10, 1, 2, 3])]);
        assert_eq!(answered.grants.len(), 1);
        assert_eq!(answered.message.metadata.response_code, ResponseCode::NoError);
        let answered = answer(&question(RecordType::A), &[], &records[..1], &[]);
        assert_eq!(answered.message.metadata.response_code, ResponseCode::Refused);
        assert!(answered.message.answers.is_empty() && answered.grants.is_empty());
        let within = ["10.0.0.0/8".parse().unwrap()];
        let answered = answer(&question(RecordType::A), &[], &records, &within);
        assert_eq!((answered.grants.len(), answered.withheld.len()), (2, 0));
    }

    #[test]
    fn every_form_of_an_inner_address_is_known() {
        for text in [
            "0.0.0.0",
            "10.0.0.1",
            "127.0.0.1",
            "100.64.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "192.168.0.1",
            "192.0.0.192",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "168.63.129.16",
            "::",
            "::1",
            "fe80::1",
            "fec0::1",
            "fd00:ec2::254",
            "fc00::1",
            "ff02::1",
            "::ffff:10.0.0.1",
            "::10.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "2002:a00:1::",
        ] {
            assert!(is_of_this_site(text.parse().unwrap()), "{text}");
        }
        for text in
            ["1.1.1.1", "192.0.2.1", "2606:4700::1111", "64:ff9b::1.1.1.1", "2002:101:101::"]
        {
            assert!(!is_of_this_site(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn hints_of_services_are_taken_out() {
        let hints = vec![
            (SvcParamKey::Ipv4Hint, SvcParamValue::Ipv4Hint(IpHint(vec![A::new(192, 0, 2, 1)]))),
            (
                SvcParamKey::Ipv6Hint,
                SvcParamValue::Ipv6Hint(IpHint(vec![AAAA(Ipv6Addr::LOCALHOST)])),
            ),
            (SvcParamKey::Port, SvcParamValue::Port(8443)),
        ];
        let service = HTTPS(SVCB::new(1, Name::root(), hints));
        let records = [record("api.example.com.", RData::HTTPS(service))];
        let answered = answer(&question(RecordType::HTTPS), &[], &records, &[]);
        let RData::HTTPS(service) = &answered.message.answers[0].data else { panic!() };
        assert_eq!(service.svc_params.len(), 1);
        assert!(answered.grants.is_empty());
    }
}
