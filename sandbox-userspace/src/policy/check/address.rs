//! Addresses: `ADDRESS[/BITS][:PORT[-PORT]][/tcp|/udp]`; an IPv6 address stands in brackets.

use super::super::rule::{Host, Protocol, Target};
use super::{Problem, name, nearest};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

/// Every port.
const ALL_PORTS: RangeInclusive<u16> = 0..=u16::MAX;
/// Leading bits that `::ffff:0:0/96` takes of an IPv4-mapped address.
const MAPPED_BITS: u8 = 96;

/// Reads an entry of `network.listen`: an address of this machine. The one that stands for none
/// (`0.0.0.0`, `[::]`) stands for every one of its family.
pub fn parse_own(text: &str) -> Result<Target, Problem> {
    let mut target = parse(text)?;
    if target.net.addr().is_unspecified() {
        target.net = IpNet::new_assert(target.net.addr(), 0);
    }
    Ok(target)
}

/// Reads an entry of `network.allow` and `network.deny`.
pub fn parse_host(text: &str) -> Result<Host, Problem> {
    let (host, ports, protocols) = parts(text)?;
    if text.trim_start().starts_with('[') || !name::is_name(host.split('/').next().unwrap_or("")) {
        return Ok(Host::Net(Target { net: network(&host)?, ports: ports_of(ports)?, protocols }));
    }
    Ok(Host::Name(name::parse(&host)?, ports_of(ports)?, protocols))
}

/// Reads an address, where names make no sense.
pub fn parse(text: &str) -> Result<Target, Problem> {
    let (host, ports, protocols) = parts(text)?;
    Ok(Target { net: network(&host)?, ports: ports_of(ports)?, protocols })
}

/// Reads an entry of `network.resolvers`: `ADDRESS[:PORT]`.
pub fn parse_server(text: &str) -> Result<SocketAddr, Problem> {
    let target = parse(text)?;
    let (first, last) = (*target.ports.start(), *target.ports.end());
    let port = match (first, last) {
        (0, u16::MAX) => Some(crate::dns::PORT),
        _ => Some(first).filter(|_| first == last),
    };
    let whole = target.net.prefix_len() == target.net.max_prefix_len();
    match port.filter(|_| whole && target.protocols.len() == 2) {
        Some(port) => Ok(SocketAddr::new(target.net.addr(), port)),
        None => Err(Problem::new(
            format!("`{text}` is not one name server"),
            "write its address, and its port where that is not 53: `10.0.0.53`, `[2001:db8::53]:5353`",
        )),
    }
}

/// Host, ports and protocols of an entry.
fn parts(text: &str) -> Result<(String, Option<&str>, &'static [Protocol]), Problem> {
    let text = text.trim();
    if text.is_empty() {
        return Err(Problem::new(
            "empty address",
            "name an address, such as `127.0.0.1:8080`, or remove the entry",
        ));
    }
    let (rest, protocols) = protocols(text)?;
    let (host, ports) = match rest.strip_prefix('[') {
        Some(inside) => bracketed(inside)?,
        None => plain(rest)?,
    };
    Ok((host, ports, protocols))
}

/// Splits off `/tcp` or `/udp`: what follows the last slash, unless it is a number.
fn protocols(text: &str) -> Result<(&str, &'static [Protocol]), Problem> {
    match text.rsplit_once('/') {
        Some((rest, "tcp")) => Ok((rest, &[Protocol::Tcp])),
        Some((rest, "udp")) => Ok((rest, &[Protocol::Udp])),
        Some((_, word)) if word.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            let help = match nearest(&word.to_ascii_lowercase(), &["tcp", "udp"]) {
                Some(known) => format!("did you mean `/{known}`?"),
                None => "`/tcp` and `/udp` are known; none means both".to_owned(),
            };
            Err(Problem::new(format!("unknown protocol `{word}`"), help))
        }
        _ => Ok((text, &[Protocol::Tcp, Protocol::Udp])),
    }
}

/// `ADDRESS]/BITS:PORT` or `ADDRESS/BITS]:PORT`: the network's text and the ports'.
fn bracketed(inside: &str) -> Result<(String, Option<&str>), Problem> {
    let Some((address, rest)) = inside.split_once(']') else {
        return Err(Problem::new("`[` without `]`", "close the IPv6 address, as in `[::1]:443`"));
    };
    if !address.contains(':') {
        return Err(Problem::new(
            format!("`{address}` in brackets is no IPv6 address"),
            "write IPv4 addresses without brackets",
        ));
    }
    let (bits, ports) = match rest.split_once(':') {
        Some((bits, ports)) => (bits, Some(ports)),
        None => (rest, None),
    };
    if bits.is_empty() || bits.starts_with('/') {
        Ok((format!("{address}{bits}"), ports))
    } else {
        Err(Problem::new(
            format!("`{bits}` after the address"),
            "write `[ADDRESS]/BITS:PORT`, as in `[2001:db8::]/32:443`",
        ))
    }
}

/// `ADDRESS/BITS:PORT` of IPv4: the network's text and the ports'.
fn plain(rest: &str) -> Result<(String, Option<&str>), Problem> {
    match rest.split_once(':') {
        Some((_, ports)) if ports.contains(':') => Err(Problem::new(
            "IPv6 address without brackets",
            format!("write `[{rest}]`, and the port behind the bracket"),
        )),
        Some((host, ports)) => Ok((host.to_owned(), Some(ports))),
        None => Ok((rest.to_owned(), None)),
    }
}

fn network(text: &str) -> Result<IpNet, Problem> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let most = if address.contains(':') { 128 } else { 32 };
    let bits = match bits {
        None => most,
        Some(bits) => bits.parse().ok().filter(|number| *number <= most).ok_or_else(|| {
            Problem::new(
                format!("prefix length `{bits}`"),
                format!("write a number from 0 to {most}, as in `{address}/{most}`"),
            )
        })?,
    };
    let net = if let Ok(address) = address.parse::<Ipv6Addr>() {
        IpNet::V6(Ipv6Net::new_assert(address, bits))
    } else if let Ok(address) = address.parse::<Ipv4Addr>() {
        IpNet::V4(Ipv4Net::new_assert(address, bits))
    } else {
        return Err(no_address(address));
    };
    if net.trunc() != net {
        let meant = display(net.trunc());
        let single = display(IpNet::from(net.addr()));
        return Err(Problem::new(
            format!("the address has bits set beyond its prefix of {bits} bits"),
            format!("write `{meant}` for the network or `{single}` for the one address"),
        ));
    }
    Ok(unmapped(net))
}

fn no_address(text: &str) -> Problem {
    let name = text.contains(|c: char| c.is_ascii_alphabetic()) && !text.contains(':');
    if name {
        Problem::new(
            format!("`{text}` is a name, not an address"),
            "write the address or its network, such as `10.0.0.0/8:443`",
        )
    } else {
        Problem::new(
            format!("`{text}` is no IP address"),
            "write four numbers from 0 to 255 without leading zeros, or an IPv6 address in brackets",
        )
    }
}

/// A network in this grammar.
fn display(net: IpNet) -> String {
    match net {
        IpNet::V4(net) if net.prefix_len() == 32 => net.addr().to_string(),
        IpNet::V4(net) => net.to_string(),
        IpNet::V6(net) if net.prefix_len() == 128 => format!("[{}]", net.addr()),
        IpNet::V6(net) => format!("[{}]/{}", net.addr(), net.prefix_len()),
    }
}

/// A prefix inside `::ffff:0:0/96` as the IPv4 prefix it is; the kernel side looks there.
fn unmapped(net: IpNet) -> IpNet {
    match net {
        IpNet::V6(v6) if v6.prefix_len() >= MAPPED_BITS => match v6.addr().to_ipv4_mapped() {
            Some(address) => IpNet::V4(Ipv4Net::new_assert(address, v6.prefix_len() - MAPPED_BITS)),
            None => net,
        },
        other => other,
    }
}

fn ports_of(text: Option<&str>) -> Result<RangeInclusive<u16>, Problem> {
    let Some(text) = text else { return Ok(ALL_PORTS) };
    let (low, high) = match text.split_once('-') {
        Some((low, high)) => (port(low)?, port(high)?),
        None => (port(text)?, port(text)?),
    };
    if low > high {
        return Err(Problem::new(
            format!("port range {low}-{high} is reversed"),
            format!("write `:{high}-{low}`"),
        ));
    }
    Ok(low..=high)
}

fn port(text: &str) -> Result<u16, Problem> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(0) => Err(Problem::new("port 0", "leave the port out to mean every port")),
        Ok(port) if digits => Ok(port),
        _ => Err(Problem::new(
            format!("`{text}` is no port"),
            "write a number from 1 to 65535, or a range such as `8000-8010`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Protocol::{Tcp, Udp};

    #[test]
    fn reads_addresses() {
        for (text, net, ports, protocols) in [
            ("10.0.0.0/8:5432/tcp", "10.0.0.0/8", 5432..=5432, &[Tcp][..]),
            ("[2001:db8::]/32:443", "2001:db8::/32", 443..=443, &[Tcp, Udp]),
            ("[2001:db8::/32]:443/udp", "2001:db8::/32", 443..=443, &[Udp]),
            ("127.0.0.1:8000-8010", "127.0.0.1/32", 8000..=8010, &[Tcp, Udp]),
            ("127.0.0.1", "127.0.0.1/32", ALL_PORTS, &[Tcp, Udp]),
            ("0.0.0.0/0/tcp", "0.0.0.0/0", ALL_PORTS, &[Tcp]),
            ("[::1]", "::1/128", ALL_PORTS, &[Tcp, Udp]),
            ("[::]/0", "::/0", ALL_PORTS, &[Tcp, Udp]),
            ("[::ffff:10.0.0.0]/104:1", "10.0.0.0/8", 1..=1, &[Tcp, Udp]),
            ("[::ffff:1.2.3.4]:65535", "1.2.3.4/32", u16::MAX..=u16::MAX, &[Tcp, Udp]),
        ] {
            let target = Target { net: net.parse().unwrap(), ports, protocols };
            assert_eq!(parse(text), Ok(target), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_address() {
        for (text, message, help) in [
            ("", "empty address", "127.0.0.1:8080"),
            ("10.0.0.1/8:80", "bits set beyond", "`10.0.0.0/8` for the network or `10.0.0.1` for"),
            (
                "[2001:db8::1]/32",
                "bits set beyond",
                "`[2001:db8::]/32` for the network or `[2001:db8::1]`",
            ),
            ("10.0.0.0/33", "prefix length `33`", "0 to 32"),
            ("10.0.0.0/", "prefix length ``", "0 to 32"),
            ("[::]/129", "prefix length `129`", "0 to 128"),
            ("127.0.0.1:70000", "`70000` is no port", "1 to 65535"),
            ("127.0.0.1:0", "port 0", "leave the port out"),
            ("127.0.0.1:+80", "`+80` is no port", "1 to 65535"),
            ("127.0.0.1:", "`` is no port", "1 to 65535"),
            ("127.0.0.1:90-80", "port range 90-80 is reversed", "`:80-90`"),
            ("127.0.0.1:80/tpc", "unknown protocol `tpc`", "did you mean `/tcp`?"),
            ("127.0.0.1:80/sctp", "unknown protocol `sctp`", "none means both"),
            ("127.0.0.1:80/icmp6", "unknown protocol `icmp6`", "`/tcp` and `/udp`"),
            ("127.0.0.1:80/TCP", "unknown protocol `TCP`", "did you mean `/tcp`?"),
            ("::1:443", "IPv6 address without brackets", "write `[::1:443]`"),
            ("[::1", "`[` without `]`", "close"),
            ("[127.0.0.1]:80", "`127.0.0.1` in brackets", "without brackets"),
            ("[::1]443", "`443` after the address", "[ADDRESS]/BITS:PORT"),
            ("example.com:443", "`example.com` is a name", "write the address"),
            ("127.0.0:80", "`127.0.0` is no IP address", "four numbers"),
            ("127.0.0.01", "`127.0.0.01` is no IP address", "leading zeros"),
            ("127.0.0.1:80-90-100", "`90-100` is no port", "range"),
        ] {
            let problem = parse(text).expect_err(text);
            assert!(problem.message.contains(message), "{text}: {problem:?}");
            assert!(problem.help.contains(help), "{text}: {problem:?}");
        }
    }
}
