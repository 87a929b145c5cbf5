//! What was sent, as the wire shows it.

use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, recv, socket_with};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

/// `linux/if_ether.h`: packets of every protocol.
const ETH_P_ALL: u16 = 3;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Reads every packet of the machine and remembers where the first ones of connections and the datagrams go.
#[derive(Debug)]
pub(crate) struct Wire(Arc<Mutex<BTreeSet<(SocketAddr, u8)>>>);

impl Wire {
    /// From now on, until the suite ends.
    pub(crate) fn watch() -> anyhow::Result<Self> {
        let protocol = NonZeroU32::new(u32::from(ETH_P_ALL.to_be())).map(Protocol::from_raw);
        let socket =
            socket_with(AddressFamily::PACKET, SocketType::DGRAM, SocketFlags::CLOEXEC, protocol)?;
        let seen = Arc::<Mutex<BTreeSet<_>>>::default();
        let noted = Arc::clone(&seen);
        std::thread::spawn(move || {
            let mut buffer = [0; 128];
            // A longer packet is cut, the beginning is enough.
            while let Ok((length, _)) = recv(&socket, &mut buffer, rustix::net::RecvFlags::empty())
            {
                if let Some(found) = destination(&buffer[..length.min(buffer.len())]) {
                    noted.lock().unwrap_or_else(PoisonError::into_inner).insert(found);
                }
            }
        });
        Ok(Self(seen))
    }

    /// Where something went: address, port, `IPPROTO_*`. What went to loopback addresses is left out.
    pub(crate) fn seen(&self) -> BTreeSet<(SocketAddr, u8)> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().filter(|(to, _)| !to.ip().is_loopback()).copied().collect()
    }
}

/// Where a packet goes, unless it belongs to a connection that exists. Of another protocol than TCP and UDP the
/// port is 0.
fn destination(packet: &[u8]) -> Option<(SocketAddr, u8)> {
    let (to, protocol, rest): (IpAddr, u8, &[u8]) = match packet.first()? >> 4 {
        4 => {
            let to: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            let header = usize::from(packet[0] & 15) * 4;
            (Ipv4Addr::from(to).into(), *packet.get(9)?, packet.get(header..)?)
        }
        6 => {
            let to: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            (Ipv6Addr::from(to).into(), *packet.get(6)?, packet.get(40..)?)
        }
        _ => return None,
    };
    let port = || Some(u16::from_be_bytes(rest.get(2..4)?.try_into().ok()?));
    match protocol {
        // A first segment: SYN without ACK.
        TCP if rest.get(13)? & 0x12 == 2 => Some((SocketAddr::new(to, port()?), TCP)),
        TCP => None,
        UDP => Some((SocketAddr::new(to, port()?), UDP)),
        other => Some((SocketAddr::new(to, 0), other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_packets_are_told_from_others() {
        let mut packet = [0; 40];
        packet[0] = 0x45;
        packet[9] = TCP;
        packet[16..20].copy_from_slice(&[203, 0, 113, 5]);
        packet[22..24].copy_from_slice(&443_u16.to_be_bytes());
        packet[33] = 2;
        let to = SocketAddr::from(([203, 0, 113, 5], 443));
        assert_eq!(destination(&packet), Some((to, TCP)));
        packet[33] = 0x12;
        assert_eq!(destination(&packet), None);
        packet[9] = UDP;
        assert_eq!(destination(&packet), Some((to, UDP)));
        packet[9] = 1;
        assert_eq!(destination(&packet), Some((SocketAddr::new(to.ip(), 0), 1)));
        assert_eq!(destination(&packet[..10]), None);
    }
}
