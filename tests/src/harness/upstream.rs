//! A name server of the world.

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};

/// What a name stands for.
#[derive(Clone, Debug)]
pub(crate) enum Stands {
    For(Vec<IpAddr>),
    Alias(&'static str),
    /// One of these at each question about it, for a second.
    InTurn(Vec<IpAddr>),
    /// Questions about it are not answered.
    Silence,
}

/// It answers by UDP and TCP and remembers what it was asked.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    /// Answers until the suite ends.
    pub(crate) fn start(names: &[(&'static str, Stands)]) -> anyhow::Result<Self> {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), names)
    }

    /// The same at an address that is free.
    pub(crate) fn at(
        address: SocketAddr,
        names: &[(&'static str, Stands)],
    ) -> anyhow::Result<Self> {
        let udp = UdpSocket::bind(address)?;
        let address = udp.local_addr()?;
        let tcp = TcpListener::bind(address)?;
        let zone: Arc<HashMap<String, Stands>> = Arc::new(
            names.iter().map(|(name, stands)| ((*name).to_owned(), stands.clone())).collect(),
        );
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let (of_udp, noted) = (Arc::clone(&zone), Arc::clone(&asked));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((length, from)) = udp.recv_from(&mut buffer) {
                let Some(answer) = answer(&buffer[..length], &of_udp, &noted) else { continue };
                let bytes = answer.to_vec().unwrap_or_default();
                let bytes = if bytes.len() > 1232 {
                    answer.truncate().to_vec().unwrap_or_default()
                } else {
                    bytes
                };
                // Who asks may be gone.
                let _ = udp.send_to(&bytes, from);
            }
        });
        let noted = Arc::clone(&asked);
        std::thread::spawn(move || {
            for mut stream in tcp.incoming().flatten() {
                let (zone, noted) = (Arc::clone(&zone), Arc::clone(&noted));
                std::thread::spawn(move || {
                    let mut length = [0; 2];
                    while stream.read_exact(&mut length).is_ok() {
                        let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
                        if stream.read_exact(&mut bytes).is_err() {
                            return;
                        }
                        let Some(answer) = answer(&bytes, &zone, &noted) else { return };
                        let bytes = answer.to_vec().unwrap_or_default();
                        let length = u16::try_from(bytes.len()).unwrap_or_default().to_be_bytes();
                        if stream.write_all(&[&length[..], &bytes].concat()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Ok(Self { address, asked })
    }

    /// Every name that it was asked for.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn answer(
    bytes: &[u8],
    zone: &HashMap<String, Stands>,
    asked: &Mutex<Vec<String>>,
) -> Option<Message> {
    let question = Message::from_vec(bytes).ok()?;
    let query = question.queries.first()?;
    let name = query.name().to_ascii().to_ascii_lowercase();
    let before = {
        let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.push(name.clone());
        asked.iter().filter(|asked| **asked == name).count() - 1
    };
    let mut reply = Message::response(question.metadata.id, question.metadata.op_code);
    reply.metadata.recursion_available = true;
    reply.queries.clone_from(&question.queries);
    reply.edns.clone_from(&question.edns);
    let (mut owner, mut at) = (query.name().clone(), name);
    loop {
        match zone.get(at.trim_end_matches('.')) {
            None => {
                reply.metadata.response_code = ResponseCode::NXDomain;
                break;
            }
            Some(Stands::Alias(target)) => {
                let target_name = Name::from_ascii(format!("{target}.")).ok()?;
                let data = RData::CNAME(CNAME(target_name.clone()));
                reply.add_answer(Record::from_rdata(owner, 300, data));
                (owner, at) = (target_name, (*target).to_owned());
            }
            Some(Stands::Silence) => return None,
            Some(Stands::For(addresses)) => {
                add(&mut reply, &owner, addresses, 300);
                break;
            }
            Some(Stands::InTurn(turns)) => {
                add(&mut reply, &owner, &[*turns.get(before % turns.len())?], 1);
                break;
            }
        }
    }
    Some(reply)
}

/// Adds the addresses of the kind that was asked for.
fn add(reply: &mut Message, owner: &Name, addresses: &[IpAddr], seconds: u32) {
    let kind = reply.queries.first().map(hickory_proto::op::Query::query_type);
    for address in addresses {
        let data = match (address, kind) {
            (IpAddr::V4(v4), Some(RecordType::A)) => RData::A(A(*v4)),
            (IpAddr::V6(v6), Some(RecordType::AAAA)) => RData::AAAA(AAAA(*v6)),
            _ => continue,
        };
        reply.add_answer(Record::from_rdata(owner.clone(), seconds, data));
    }
}
