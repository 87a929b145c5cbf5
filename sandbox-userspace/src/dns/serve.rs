//! The servers: datagrams and connections in, answers out.

use super::answer::{self, Answered};
use super::child::{Shared, opened};
use super::question::{self, Question, Verdict, reply};
use hickory_proto::op::{Message, ResponseCode};
use hickory_resolver::net::{DnsError, NetError};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::spawn_local;
use tokio::time::timeout;

/// Most bytes of an answer by UDP: what passes every network unfragmented (DNS flag day 2020).
pub(super) const LARGEST_DATAGRAM: u16 = 1232;
/// Questions that are under way at once; further ones wait in the socket.
const QUESTIONS: usize = 512;
/// Connections at once.
const CONNECTIONS: usize = 64;
/// A connection on which nothing is asked for so long is closed.
const IDLE: Duration = Duration::from_secs(20);

/// Answers datagrams, for good.
pub(super) async fn datagrams(socket: UdpSocket, shared: Rc<Shared>) -> io::Result<()> {
    let socket = Rc::new(socket);
    let under_way = Arc::new(Semaphore::new(QUESTIONS));
    let mut buffer = vec![0; 65_536];
    loop {
        let Ok(permit) = Arc::clone(&under_way).acquire_owned().await else { return Ok(()) };
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            // Of an answer that could not be delivered.
            Err(error) if is_of_one_peer(&error) => continue,
            Err(error) => return Err(error),
        };
        let bytes = buffer[..length].to_vec();
        let (socket, shared) = (Rc::clone(&socket), Rc::clone(&shared));
        spawn_local(async move {
            let _permit = permit;
            for answer in answers(&bytes, &shared, true).await {
                let limit = Message::from_vec(&bytes)
                    .map_or(512, |asked| asked.max_payload().min(LARGEST_DATAGRAM));
                send(&socket, from, &answer, usize::from(limit)).await;
            }
        });
    }
}

fn is_of_one_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, PermissionDenied};
    matches!(error.kind(), ConnectionRefused | ConnectionReset | PermissionDenied)
}

/// An answer that is too long is sent without its records, and asked for by TCP.
async fn send(socket: &UdpSocket, to: SocketAddr, answer: &Message, limit: usize) {
    let bytes = answer.to_vec().ok().filter(|bytes| bytes.len() <= limit);
    let bytes = bytes.or_else(|| answer.truncate().to_vec().ok());
    if let Some(bytes) = bytes {
        // Who does not take it asks again.
        let _ = socket.send_to(&bytes, to).await;
    }
}

/// Answers connections, for good.
pub(super) async fn connections(listener: TcpListener, shared: Rc<Shared>) -> io::Result<()> {
    let open = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&open).acquire_owned().await else { return Ok(()) };
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error)
                if is_of_one_peer(&error) || error.kind() == io::ErrorKind::ConnectionAborted =>
            {
                continue;
            }
            Err(error) => return Err(error),
        };
        let shared = Rc::clone(&shared);
        spawn_local(async move {
            let _permit = permit;
            // However it ends, it ends for this client alone.
            let _ = converse(stream, &shared).await;
        });
    }
}

/// One question after the other.
async fn converse(mut stream: TcpStream, shared: &Rc<Shared>) -> io::Result<()> {
    loop {
        let mut length = [0; 2];
        timeout(IDLE, stream.read_exact(&mut length)).await??;
        let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
        timeout(IDLE, stream.read_exact(&mut bytes)).await??;
        for answer in answers(&bytes, shared, false).await {
            let Ok(bytes) = answer.to_vec() else { continue };
            let Ok(length) = u16::try_from(bytes.len()) else { continue };
            let framed = [&length.to_be_bytes()[..], &bytes].concat();
            timeout(IDLE, stream.write_all(&framed)).await??;
        }
    }
}

/// What is answered to the bytes of a message.
async fn answers(bytes: &[u8], shared: &Rc<Shared>, datagram: bool) -> Vec<Message> {
    // Nothing is asked while the rules are looked at.
    let verdict = question::judge(bytes, &shared.rules.borrow().names);
    match verdict {
        Verdict::Ignore => Vec::new(),
        Verdict::Answer(answer) => vec![*answer],
        Verdict::Refuse(answer, refused) => {
            shared.refused(refused);
            if shared.audit
                && let Some(question) = question::unjudged(bytes)
            {
                return vec![ask(&question, shared).await];
            }
            let mut answers = vec![*answer];
            if datagram {
                // musl waits for five seconds after a refusal: it hears only that a name exists or does
                // not. All others have taken the first answer.
                let mut second = answers[0].clone();
                second.metadata.response_code = ResponseCode::NXDomain;
                answers.push(second);
            }
            answers
        }
        Verdict::Ask(question) => vec![ask(&question, shared).await],
    }
}

/// Asks upstream, opens what is found, and answers.
async fn ask(question: &Question, shared: &Rc<Shared>) -> Message {
    let failed = || reply(&question.message, ResponseCode::ServFail);
    let found = match shared.upstream(question).await {
        Ok(found) => found,
        Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
            let code = match none.response_code {
                code @ (ResponseCode::NXDomain | ResponseCode::NoError) => code,
                _ => ResponseCode::ServFail,
            };
            return reply(&question.message, code);
        }
        Err(error) => {
            shared.unanswered(&question.text, &error);
            return failed();
        }
    };
    let Answered { message, grants, withheld } = {
        let rules = shared.rules.borrow();
        // The rules may have changed meanwhile.
        let open = opened(&rules.names, &question.text);
        if open.is_empty() && !shared.audit {
            return reply(&question.message, ResponseCode::Refused);
        }
        answer::answer(question, &open, &found, &rules.within)
    };
    if !withheld.is_empty() {
        shared.withheld(&question.text, withheld);
    }
    match shared.open(&grants) {
        Ok(()) => message,
        Err(error) => {
            shared.warn(format!("cannot open the addresses of {}: {error:#}", question.text));
            failed()
        }
    }
}
